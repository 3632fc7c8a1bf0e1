"""`swift doctor`: check this machine for training, and suggest fixes."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from swift.cli.commands import collision
from swift.config.options import Section
from swift.contracts import EngineLibrary
from swift.errors import SwiftError
from swift.installation import CORE, conflicts, pip_install, pip_uninstall
from swift.remote.hub_cache import cached_ids, hub_cache
from swift.terminal import result_alone
from swift.version import __version__

Verdict = Literal["ok", "note", "broken"]
_MARKS = {"ok": "[green]✓[/]", "note": "[yellow]·[/]", "broken": "[red]✗[/]"}
_KERNELS = {
    "flash_attn": ("flash-attn", "fast attention on NVIDIA GPUs"),
    "liger_kernel": ("liger", "fused kernels on GPUs (--model.liger)"),
    "bitsandbytes": ("qlora", "QLoRA and 8-bit AdamW"),
}
"""Import name → extra of swift-core, and what it is used for."""
_LITTLE_SPACE_GIB = 20.0
_TORCH_FACTS = """
import json
try:
    import torch
    available = torch.cuda.is_available()
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count() if available else 0)]
    found = {
        "gpus": [(gpu.name, gpu.total_memory) for gpu in gpus],
        "bf16": available and torch.cuda.is_bf16_supported(),
        "cuda": torch.version.cuda,
    }
except Exception as cause:  # a damaged installation fails in many ways
    found = {"error": str(cause)}
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str
    what: str
    verdict: Verdict = "ok"
    fix: str = ""
    """What to type."""


class DoctorOptions(Section):
    """Checks versions, devices, kernels, plugins, offline mode and disk space. Exit code 1 if something is broken."""

    as_json: bool = Field(False, alias="json", description="Print JSON")


class DoctorCommand:
    """Implements `swift.contracts.Command`."""

    group = "Inspect"
    summary = "Check this machine and suggest fixes"
    options_model = DoctorOptions

    def run(self, options: DoctorOptions) -> int:
        with result_alone() as say:
            findings = list(examine())
            if options.as_json:
                say(json.dumps([asdict(finding) for finding in findings], indent=2))
        if not options.as_json:
            _print(findings)
        return 1 if any(finding.verdict == "broken" for finding in findings) else 0


def examine() -> Iterator[Finding]:
    """Yield all findings, by topic."""
    yield from _installation()
    yield from _versions()
    yield from _devices()
    yield from _kernels()
    yield from examine_engines()
    yield from _plugins()
    yield from _offline()
    yield from _disk()


def _installation() -> Iterator[Finding]:
    for other in conflicts():
        yield Finding("installation", other.problem, "broken" if other.damaged else "note", other.repair)


def _versions() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    yield Finding("versions", f"swift {__version__}, Python {platform.python_version()}")
    for text in metadata.requires(CORE) or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield Finding("versions", f"{requirement.name} is missing", "broken", pip_install(text))
            continue
        if requirement.specifier.contains(version, prereleases=True):
            yield Finding("versions", f"{requirement.name} {version}")
        else:
            mismatch = f"{requirement.name} {version}, but swift needs {requirement.specifier}"
            yield Finding("versions", mismatch, "broken", pip_install(text))


def _devices() -> Iterator[Finding]:
    torch = _torch_facts()
    if "error" in torch:
        what = f"import torch failed: {torch['error']}"
        yield Finding("devices", what, "broken", pip_install("--force-reinstall", "torch"))
        return
    if torch["gpus"]:
        for index, (name, memory) in enumerate(torch["gpus"]):
            yield Finding("devices", f"GPU {index}: {name}, {memory / 2**30:.0f} GiB")
        bf16 = "has" if torch["bf16"] else "does not have"
        yield Finding("devices", f"CUDA {torch['cuda']}; the GPU {bf16} bfloat16")
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("devices", f"CPU, {cores} cores")
    if shutil.which("nvidia-smi") and torch["cuda"] is None:
        yield Finding(
            "devices",
            "an NVIDIA driver is installed, but this torch is built without CUDA",
            "broken",
            f"{pip_install('--force-reinstall', 'torch')}   without the CPU index",
        )
    else:
        yield Finding("devices", "no GPU: training uses the CPU, which is practical for small models only", "note")


def _torch_facts() -> dict[str, Any]:
    """Return what a subprocess finds, or its 'error': a damaged torch may kill its process."""
    ended = subprocess.run([sys.executable, "-c", _TORCH_FACTS], capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last_lines = ended.stderr.strip().splitlines() or [f"its process ended with {ended.returncode}"]
        found = {"error": last_lines[-1]}
    return found


def _kernels() -> Iterator[Finding]:
    for module, (extra, use) in _KERNELS.items():
        if find_spec(module) is not None:
            yield Finding("kernels", f"{module}: {use}")
        else:
            yield Finding("kernels", f"{module} is not installed: {use}", "note", pip_install(f"{CORE}[{extra}]"))


def examine_engines() -> Iterator[Finding]:
    """Examine the libraries of engines by their metadata, since importing them takes many seconds."""
    from swift.plugins.discover import plugin_names
    from swift.plugins.known import ENGINE, ENGINE_EXTRAS
    from swift.plugins.load import load_engine

    libraries: dict[str, EngineLibrary] = {}
    names = plugin_names("swift.engines")
    for name in names:
        with suppress(SwiftError):  # reported with the plugins
            library = getattr(load_engine(name).object, "library", None)
            if library is not None:
                libraries[name] = library
    for name, library in libraries.items():
        yield from _library(name, library)
    if not libraries and ENGINE not in names:
        yield _no_engine(ENGINE, [f"{CORE}[{extra}]" for extra in ENGINE_EXTRAS])


def _no_engine(name: str, requirements: Iterable[str]) -> Finding:
    what = f"{name} is not installed, which swift serve needs (--python selects another environment)"
    return Finding("serving", what, "note", "   or ".join(map(pip_install, requirements)))


def _library(name: str, library: EngineLibrary) -> Iterator[Finding]:
    found = [build for build in library.builds if _version_of(build)]
    if not found:
        yield _no_engine(name, library.builds.values())
        return
    for build in found:
        device = "the CPU" if build.endswith("-cpu") or "cpu" in str(_version_of(build)) else "GPUs"
        yield Finding("serving", f"{build} {_version_of(build)}, built for {device}")
        if find_spec(library.module) is None:
            missing = f"{library.module} cannot be imported: its files are missing"
            yield Finding("serving", missing, "broken", pip_install("-I", build))
        yield from _other_torch(build)
    if len(found) > 1:
        both = f"both builds of {name} are installed, in the same folder"
        yield Finding("serving", both, "broken", pip_uninstall(found[1]))


def _other_torch(build: str) -> Iterator[Finding]:
    from packaging.requirements import Requirement

    for requirement in map(Requirement, metadata.requires(build) or []):
        torch = _version_of("torch")
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if requirement.name != "torch" or not applies or torch is None:
            continue
        if not requirement.specifier.contains(torch, prereleases=True):
            mismatch = f"{build} was built for torch {requirement.specifier}, but torch is {torch}"
            yield Finding(
                "serving", mismatch, "broken", "install it in a separate environment: swift serve --python PATH"
            )


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _plugins() -> Iterator[Finding]:
    from swift.plugins.discover import list_plugins
    from swift.plugins.kinds import KINDS
    from swift.plugins.load import load

    plurals = {kind.name: group.removeprefix("swift.") for group, kind in KINDS.items()}
    usable: dict[str, list[str]] = {}
    for entry in list_plugins():
        if not entry.allowed:
            yield Finding("plugins", f"{entry} is not allowed", "note", "SWIFT_PLUGINS lists the allowed plugins")
            continue
        if problem := collision(entry):
            yield Finding("plugins", f"{entry} {problem}", "broken", pip_uninstall(entry.distribution))
            continue
        try:
            load(entry)
        except SwiftError as error:
            yield Finding("plugins", error.message, "broken", error.hint or "")
        else:
            usable.setdefault(entry.kind, []).append(entry.name)
    for kind, names in usable.items():
        yield Finding("plugins", f"{plurals[kind]}: {', '.join(names)}")


def _offline() -> Iterator[Finding]:
    switched_off = [name for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE") if os.environ.get(name, "0") != "0"]
    if switched_off:
        yield Finding("hub", f"offline ({', '.join(switched_off)}): models and data sets come from the cache", "note")
    else:
        yield Finding("hub", "models and data sets are downloaded when they are not in the cache")
    cached = cached_ids("models")
    yield Finding(
        "hub", f"cache {hub_cache()}: {len(cached)} models" + (f" ({', '.join(cached[:5])})" if cached else "")
    )


def _disk() -> Iterator[Finding]:
    for use, folder in (("runs here", Path.cwd()), ("hub cache", hub_cache())):
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(there).free / 2**30
        if not os.access(there, os.W_OK):
            yield Finding("disk", f"{use}: {there} is not writable", "broken", "choose another with --output_dir")
        elif free < _LITTLE_SPACE_GIB:
            yield Finding("disk", f"{use}: {free:.1f} GiB free", "note", "--save_total_limit N keeps fewer checkpoints")
        else:
            yield Finding("disk", f"{use}: {free:.0f} GiB free")


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    topic = ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            console.print(f"[bold]{topic}[/]")
        console.print(f"  {_MARKS[finding.verdict]} {escape(finding.what)}")
        if finding.fix:
            console.print(f"      [dim]→ {escape(finding.fix)}[/]", soft_wrap=True)
