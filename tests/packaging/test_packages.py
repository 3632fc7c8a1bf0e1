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


def project(package: Path) -> dict[str, Any]:
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_these_are_the_packages() -> None:
    assert [package.name for package in PACKAGES] == [
        "backend-deepspeed",
        "backend-fsdp",
        "backend-megatron",
        "core",
        "export-lmdeploy",
        "export-sglang",
        "export-vllm",
        "plan",
        "rl",
        "tuning",
        "ui",
    ]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_packages_share_version_and_licence(package: Path) -> None:
    version = project(PACKAGES[3])["version"]
    (init,) = package.glob("src/*/__init__.py")
    assert project(package)["version"] == version
    says = next(file for file in (init.with_name("version.py"), init) if file.exists())
    assert f'__version__ = "{version}"' in says.read_text()
    assert (package / "LICENSE").read_text() == (import_rules.ROOT / "LICENSE").read_text()
    assert (init.parent / "py.typed").is_file()


def test_the_other_packages_pin_core_and_cores_extras_pin_them() -> None:
    core = project(PACKAGES[3])
    extras = {each.name: each for extra in core["optional-dependencies"].values() for each in [Requirement(extra[0])]}
    for package in (each for each in PACKAGES if each.name != "core"):
        assert f"swift-core=={core['version']}" in project(package)["dependencies"]
        assert str(extras[project(package)["name"]].specifier) == f"=={core['version']}"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_whatever_a_package_imports_it_declares(package: Path) -> None:
    (source,) = (each.parent for each in package.glob("src/*/__init__.py"))
    told = project(package)
    extras = [each for extra in told.get("optional-dependencies", {}).values() for each in extra]
    declared = {normal(Requirement(each).name) for each in [*told["dependencies"], *extras]}
    # Editable ones name no modules, trackers are installed elsewhere, and Triton comes with torch's builds for GPUs.
    installed = metadata.packages_distributions()
    distributions = {**installed, "swift": ["swift-core"], "mlflow": ["mlflow-skinny"], "triton": ["torch"]}
    undeclared = set()
    for file in source.rglob("*.py"):
        for each in import_rules.imports(file, import_rules.module_name(file, source)):
            if each.top in {source.name, *sys.stdlib_module_names}:
                continue
            providers = {normal(name) for name in distributions.get(each.top, [each.top])}
            if not providers & declared:
                undeclared.add(f"{file.relative_to(package)}:{each.line}: {each.top}")
    assert undeclared == set()
