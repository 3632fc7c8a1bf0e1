"""Small distributions that are really built and installed: a wheel each, put into a folder by pip."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

BACKEND = """
from swift import HOOK_API, Capabilities, Section, StepResult, Topology, hookimpl
from swift.contracts import World


class Options(Section):
    speed: int = 1


class Engine:
    HOOK_API = HOOK_API
    capabilities = Capabilities(parallel=frozenset({"tp"}), tuners=frozenset({"full", "lora"}))
    config_model = Options

    @hookimpl
    def swift_setup(self, run):
        return Topology(World(), data_rank=0, data_size=1)

    @hookimpl
    def swift_wrap_model(self, source):
        return source

    @hookimpl
    def swift_shard(self, model):
        return model

    @hookimpl
    def swift_train_step(self, batch):
        return StepResult(loss=float(batch), grad_norm=1.0, learning_rate=0.1)

    @hookimpl
    def swift_forward(self, run):
        return None

    @hookimpl
    def swift_save_checkpoint(self, writer):
        writer.append("saved")

    @hookimpl
    def swift_load_checkpoint(self, reader):
        reader.append("loaded")

    @hookimpl
    def swift_iter_weights(self, state):
        yield "weight", state

    @hookimpl
    def swift_teardown(self, run):
        run.append("torn down")
"""
"""A backend that passes all checks."""


@dataclass(frozen=True)
class Distribution:
    """What a wheel is made of: one module, its entry points, its requirements."""

    name: str
    source: str
    entry_points: dict[str, dict[str, str]]
    """Group → plugin name → attribute of the module."""
    version: str = "1.0"
    requires: tuple[str, ...] = field(default=("swift-core>=0.1",))

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    def build(self, folder: Path) -> Path:
        """Write the wheel."""
        info = f"{self.module}-{self.version}.dist-info"
        points = "".join(
            f"[{group}]\n" + "".join(f"{name} = {self.module}:{attribute}\n" for name, attribute in names.items())
            for group, names in self.entry_points.items()
        )
        requires = "".join(f"Requires-Dist: {requirement}\n" for requirement in self.requires)
        files = {
            f"{self.module}.py": self.source,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version}\n{requires}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": points,
        }
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
        wheel = folder / f"{self.module}-{self.version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
        return wheel


def backend(name: str, plugin: str, *changes: tuple[str, str], requires: tuple[str, ...] | None = None) -> Distribution:
    """The good backend under another name, with passages of its source replaced."""
    source = BACKEND
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    points = {"swift.backends": {plugin: "Engine"}}
    return Distribution(name, source, points, requires=requires or ("swift-core>=0.1",))


def install(distributions: list[Distribution], site: Path, wheels: Path) -> None:
    """Install them into a folder that a test puts on the path."""
    wheels.mkdir(parents=True, exist_ok=True)
    files = [str(distribution.build(wheels)) for distribution in distributions]
    options = ["--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check", "--quiet"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", str(site), *files], check=True)
