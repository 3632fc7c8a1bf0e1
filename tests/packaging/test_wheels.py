"""The wheels, and `swift-core` installed alone: only what it declares is there, and none of the other packages."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import import_rules
import pytest
import wheels
from packaging.requirements import Requirement

PACKAGES = import_rules.ROOT / "packages"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    wheels.main(folder)
    return folder


@pytest.fixture(scope="module")
def alone(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with swift-core's wheel and what it declares; the latter linked, because copies take minutes."""
    environment = tmp_path_factory.mktemp("alone")
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    for distribution in declared("swift-core") - {"swift-core"}:
        link(metadata.distribution(distribution), packages)
    (wheel,) = built.glob("swift_core-*.whl")
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True)
    return environment


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


def swift(environment: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment / "bin" / "swift"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=environment)


@pytest.mark.parametrize("package", sorted(PACKAGES.iterdir()), ids=lambda package: package.name)
def test_a_wheel_holds_every_file_of_its_package_and_the_licence(package: Path, built: Path) -> None:
    source = package / "src"
    (init,) = source.glob("*/__init__.py")
    (wheel,) = built.glob(f"{'swift_core' if package.name == 'core' else init.parent.name}-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file()}
    assert {name for name in files if "__pycache__" not in name} == {
        name for name in names if ".dist-info/" not in name
    }
    assert f"{init.parent.name}/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_core_alone_lists_the_torch_backend_and_no_other(alone: Path) -> None:
    listed = swift(alone, "plugins")
    assert listed.returncode == 0, listed.stderr
    assert re.search(r"\btorch\b.*swift-core", listed.stdout)
    assert "swift-backend" not in listed.stdout


def test_core_alone_says_which_command_installs_megatron(alone: Path) -> None:
    asked = swift(alone, "sft", "--backend", "megatron", "--model", "somewhere", "--dataset", "some.jsonl")
    assert asked.returncode == 3
    assert 'pip install "swift-core[megatron]"' in asked.stdout + asked.stderr
    assert "Traceback" not in asked.stderr
    assert not (alone / "output").exists()


def test_every_entry_point_of_core_alone_can_be_loaded(alone: Path) -> None:
    program = (
        "from importlib.metadata import distribution\n"
        "for point in distribution('swift-core').entry_points:\n    point.load()\n"
        "import sys; assert 'pytest' not in sys.modules"
    )
    done = subprocess.run([alone / "bin" / "python", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
