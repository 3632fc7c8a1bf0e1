"""Defaults that an objective of a plugin brings for keys of other sections."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swift.errors import PluginError
from swift.parsing import Parsed, config_from_mapping, parse

SOURCE = """
from swift import Need
from swift.objectives.base import PerSampleObjective


class Careful(PerSampleObjective):
    name = "careful"
    needs = frozenset({Need.TOKEN_LOGPS})
    defaults = DEFAULTS

    def loss(self, view, batch):
        raise NotImplementedError
"""
DEFAULTS: dict[str, Any] = {
    "tuner.dropout": (0.0, "dropout would change the ratio"),
    "optim.schedule": ("constant", "a round is as good as another"),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    info = tmp_path / "careful-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: careful\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swift.objectives]\ncareful = careful_objective:Careful\n")
    (tmp_path / "careful_objective.py").write_text(SOURCE.replace("DEFAULTS", repr(DEFAULTS)))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("careful_objective", None)


def _careful(**settings: Any) -> Parsed:
    return config_from_mapping({"objective": "careful", **settings})


def _about(parsed: Parsed, key: str) -> list[str]:
    return [note for note in parsed.notes if f" {key} " in note]


@pytest.mark.usefixtures("site")
def test_objective_default_applies_with_reason_if_unset() -> None:
    """An objective's default holds where the user sets none, and is printed with its reason."""
    parsed = _careful()
    assert parsed.config.model_dump()["tuner"]["dropout"] == 0.0
    assert parsed.config.optim.schedule == "constant"
    assert _about(parsed, "tuner.dropout") == [
        "The objective careful sets tuner.dropout to 0.0: dropout would change the ratio."
    ]
    assert config_from_mapping({}).config.model_dump()["tuner"]["dropout"] == 0.05


@pytest.mark.usefixtures("site")
def test_user_setting_overrides_objective_default(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("objective: careful\noptim: {schedule: linear}\n")
    parsed = parse([str(file), "--lora_dropout", "0.1"], "train", complete=False)
    assert parsed.config.model_dump()["tuner"]["dropout"] == 0.1
    assert parsed.config.optim.schedule == "linear"
    assert not [note for note in parsed.notes if "careful sets" in note]


@pytest.mark.usefixtures("site")
def test_default_for_option_missing_in_tuner_is_skipped() -> None:
    """A default for an option that the selected tuner lacks is left out."""
    parsed = _careful(train_type="full")
    assert "dropout" not in parsed.config.model_dump()["tuner"]
    assert not _about(parsed, "tuner.dropout")


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"tuner.dropout": 0.0}, "declares defaults['tuner.dropout'] as the float 0.0"),
        ({"backend.name": ("torch", "so")}, "declares a default of 'backend.name'"),
        ({"tuner.kind": ("full", "so")}, "declares a default of 'tuner.kind'"),
        ([("tuner.dropout", 0.0)], "declares defaults as a list"),
    ],
)
def test_invalid_objective_default_names_plugin(site: Path, defaults: Any, message: str) -> None:
    """The error for invalid defaults names the plugin."""
    (site / "careful_objective.py").write_text(SOURCE.replace("DEFAULTS", repr(defaults)))
    with pytest.raises(PluginError, match="careful") as error:
        _careful()
    assert message in error.value.message
