"""Wheels of all packages, and an environment in which swift-core's is installed alone."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
import wheels
from packaging.requirements import Requirement


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    wheels.main(folder)
    return folder


@pytest.fixture(scope="session")
def alone(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with swift-core's wheel and what it declares."""
    return core_environment(built, tmp_path_factory.mktemp("alone"))


def core_environment(built: Path, environment: Path) -> Path:
    """What swift-core declares is linked, because copies take minutes."""
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    for distribution in declared("swift-core") - {"swift-core"}:
        link(metadata.distribution(distribution), packages)
    (wheel,) = built.glob("swift_core-*.whl")
    install(environment, wheel)
    return environment


def install(environment: Path, wheel: Path) -> None:
    """A wheel, without what it declares."""
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, str(wheel)], check=True)


def declared(name: str) -> set[str]:
    """A distribution and all that it needs, as far as it applies here."""
    found: set[str] = set()
    waiting = [(name, "")]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # the CUDA libraries that torch's CPU build does without
        found.add(re.sub(r"[-_.]+", "-", name).lower())
        for requirement in map(Requirement, requirements):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                new = {(requirement.name, extra) for extra in ("", *requirement.extras)} - seen
                seen |= new
                waiting += new
    return found


def link(distribution: metadata.Distribution, packages: Path) -> None:
    for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
        target = packages / name
        if not target.exists():
            target.symlink_to(Path(str(distribution.locate_file(name))))
