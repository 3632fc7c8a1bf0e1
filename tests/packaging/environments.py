"""Wheels of all packages, and an environment in which swift-core's is installed alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import wheels
from lone_environment import declared, lone_environment

from swift.plugins.known import PACKAGES


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    wheels.main(folder)
    return folder


@pytest.fixture(scope="session")
def alone(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with swift-core's wheel and what it declares."""
    return core_environment(built, tmp_path_factory.mktemp("alone"))


def core_environment(built: Path, environment: Path, *extras: str) -> Path:
    """Install swift-core's wheel with extras, those of the packages that they need included."""
    packages = declared("swift-core", extras) & PACKAGES
    files = [wheel for name in packages for wheel in built.glob(f"{name.replace('-', '_')}-*.whl")]
    return lone_environment(files, environment, extras)
