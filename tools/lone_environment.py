"""Create environments with some packages and their declared dependencies only, without the network, in seconds.

Third-party packages are linked from the current environment, because copies take minutes.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from swift.plugins.known import PACKAGES


def lone_environment(wheels: Sequence[Path], environment: Path, extras: Iterable[str] = ()) -> Path:
    """Make an environment with these wheels, as swift-core with such extras would bring them, and return it."""
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    for distribution in declared("swift-core", extras):
        if distribution not in PACKAGES:
            link(metadata.distribution(distribution), packages)
    for wheel in wheels:
        install(environment, wheel)
    return environment


def install(environment: Path, wheel: Path) -> None:
    """Install a wheel, without what it declares."""
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, str(wheel)], check=True)


def declared(name: str, extras: Iterable[str] = ()) -> set[str]:
    """Return a distribution and all that it needs with these extras, as far as it applies here."""
    found: set[str] = set()
    waiting = [(name, extra) for extra in ("", *extras)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # the CUDA libraries that torch's CPU build does without
        found.add(canonicalize_name(name))
        for requirement in map(Requirement, requirements):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                new = {(requirement.name, extra) for extra in ("", *requirement.extras)} - seen
                seen |= new
                waiting += new
    return found


def link(distribution: metadata.Distribution, packages: Path) -> None:
    """Link what a distribution has installed into another environment's folder of packages."""
    for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
        target = packages / name
        if not target.exists():
            target.symlink_to(Path(str(distribution.locate_file(name))))
