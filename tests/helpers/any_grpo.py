"""An objective `grpo` that takes every option: for tests of what core makes of flags and recipes for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_SOURCE = """
from swift import Section
from swift.objectives.base import PerSampleObjective


class Options(Section):
    model_config = {"extra": "allow"}


class Grpo(PerSampleObjective):
    name = "grpo"
    options_model = Options

    def loss(self, view, batch):
        raise NotImplementedError
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it the only objective besides core's, until the patches are undone.

    Of swift-rl, whose objective may be installed, only the vocabulary `online` is allowed.
    """
    info = folder / "stand_in_for_rl-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in-for-rl\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swift.objectives]\ngrpo = stand_in_for_rl:Grpo\n")
    (folder / "stand_in_for_rl.py").write_text(_SOURCE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("SWIFT_PLUGINS", "swift-core,swift-migrate,swift-objectives,online,stand-in-for-rl")


@pytest.fixture
def any_grpo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs it for one test."""
    install(tmp_path / "any_grpo", monkeypatch)
    yield
    sys.modules.pop("stand_in_for_rl", None)
