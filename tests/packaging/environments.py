"""Wheels of all packages, and an environment in which swift-core's is installed alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import wheels
from lone_environment import lone_environment


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
    (wheel,) = built.glob("swift_core-*.whl")
    return lone_environment([wheel], environment)
