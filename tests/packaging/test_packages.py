"""The packages: one version, one licence, and dependencies that are declared where they are used."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import import_rules
import pytest
from packaging.requirements import Requirement

PACKAGES = sorted(file.parent for file in import_rules.ROOT.glob("packages/*/pyproject.toml"))
CORE = import_rules.ROOT / "packages" / "core"


def project(package: Path) -> dict[str, Any]:
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_packages_share_version_and_licence() -> None:
    version = project(CORE)["version"]
    for package in PACKAGES:
        (init,) = package.glob("src/*/__init__.py")
        assert project(package)["version"] == version
        declares = next(file for file in (init.with_name("version.py"), init) if file.exists())
        assert f'__version__ = "{version}"' in declares.read_text()
        assert (package / "LICENSE").read_text() == (import_rules.ROOT / "LICENSE").read_text()
        assert (init.parent / "py.typed").is_file()


def test_packages_and_extras_of_core_pin_each_other() -> None:
    core = project(CORE)
    extras = {each.name: each for extra in core["optional-dependencies"].values() for each in [Requirement(extra[0])]}
    for package in (each for each in PACKAGES if each != CORE):
        assert f"swift-core=={core['version']}" in project(package)["dependencies"]
        assert str(extras[project(package)["name"]].specifier) == f"=={core['version']}"


def test_standard_extra_has_all_but_backends_and_engines() -> None:
    (standard,) = project(CORE)["optional-dependencies"]["standard"]
    others = {each.name for each in PACKAGES if not each.name.startswith(("backend-", "export-"))}
    assert Requirement(standard).extras == others - {"core", "testing"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_imports_of_a_package_are_declared(package: Path) -> None:
    (source,) = (each.parent for each in package.glob("src/*/__init__.py"))
    own = project(package)
    extras = [each for extra in own.get("optional-dependencies", {}).values() for each in extra]
    declared = {normal(Requirement(each).name) for each in [*own["dependencies"], *extras]}
    # Editable ones name no modules, trackers are installed elsewhere, and Triton comes with torch's builds for GPUs.
    installed = metadata.packages_distributions()
    distributions = {**installed, "swift": ["swift-core"], "mlflow": ["mlflow-skinny"], "triton": ["torch"]}
    undeclared = set()
    for file in import_rules.sources(source):
        for each in import_rules.imports(file, import_rules.module_name(file, source)):
            if each.top in {source.name, *sys.stdlib_module_names}:
                continue
            providers = {normal(name) for name in distributions.get(each.top, [each.top])}
            if not providers & declared:
                undeclared.add(f"{file.relative_to(package)}:{each.line}: {each.top}")
    assert undeclared == set()
