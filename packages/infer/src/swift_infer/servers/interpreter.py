"""The Python interpreter that a server runs in: this one, or that of another environment."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift.errors import PluginError, UsageError
from swift.installation import pip_install

_QUESTION = """
import importlib.util, json, sys
from importlib import metadata
module, distributions, group = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
found = {"distribution": None, "folder": None}
for name in distributions:
    try:
        found["version"] = metadata.version(name)
        found["distribution"] = name
        break
    except metadata.PackageNotFoundError:
        pass
spec = importlib.util.find_spec(module)
found["folder"] = spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None
others = metadata.entry_points(group=group) if group else ()
found["plugins"] = sorted({each.dist.name for each in others if each.dist} - set(distributions))
print("\\n" + json.dumps(found))
"""
_PATIENCE = 120
"""Timeout in seconds."""


@dataclass(frozen=True)
class ServerLibrary:
    """A library that has a server, as it is found without being imported."""

    title: str
    """'vLLM'."""
    module: str
    """Name that it is imported by."""
    distributions: tuple[str, ...]
    """What may have brought it; only one of them can be installed, as they are the same module."""
    install: str
    """The requirement that installs it next to swift."""
    remark: str
    """What else to know about that, as the end of a sentence."""
    plugins: str = ""
    """Group of entry points through which others add to it, if it has one."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that has the library of a server."""

    path: Path
    distribution: str
    version: str
    folder: Path
    """Where the package lies."""
    plugins: tuple[str, ...] = ()
    """Distributions that add to the library, models perhaps."""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def find_interpreter(library: ServerLibrary, python: Path | None) -> Interpreter:
    """Return the named interpreter, or this one, with what it has of a library."""
    path = Path(sys.executable) if python is None else _named(python)
    facts = _ask(path, library)
    if facts["distribution"] is None or facts["folder"] is None:
        where = "" if python is None else f" in the environment of {path}"
        own = f"{pip_install(library.install)}{library.remark}"
        command = own if python is None else f"{path} -m pip install {library.distributions[0]}"
        raise PluginError(f"{library.title} is not installed{where}.", hint=f"Type: {command}")
    return Interpreter(path, facts["distribution"], facts["version"], Path(facts["folder"]), tuple(facts["plugins"]))


def _named(python: Path) -> Path:
    path = python.expanduser()
    if path.is_dir():  # of an environment
        path = next((each for each in (path / "bin" / "python", path / "python") if each.is_file()), path)
    if not path.is_file():
        raise UsageError(f"The interpreter {python} does not exist.", hint="For example: --python ~/serving/bin/python")
    return path.absolute()  # never resolved: a link is what makes an environment's Python its own


def _ask(path: Path, library: ServerLibrary) -> dict[str, Any]:
    args = [library.module, ",".join(library.distributions), library.plugins]
    try:
        done = subprocess.run(
            [path, "-c", _QUESTION, *args], capture_output=True, text=True, timeout=_PATIENCE, stdin=subprocess.DEVNULL
        )
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise UsageError(
            f"{path} is not a working Python interpreter ({type(error).__name__}).",
            hint="Pass one with --python, such as ~/serving/bin/python",
        ) from error
    return facts
