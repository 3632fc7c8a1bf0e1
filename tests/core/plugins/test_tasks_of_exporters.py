"""A run that ends with an export is refused before it begins where the exporter does not write models of its task."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift.config.sections import Config
from swift.errors import PluginError, UnsupportedLayout
from swift.parsing import config_from_mapping
from swift.parsing.capabilities import check_export
from swift.plugins.load import load_exporter
from swift_testing.objectives import install_objectives


def ends_with(exporter: str, task: str) -> Config:
    return Config.model_validate({"export": {"to": exporter}, "model": {"task": task}})


def test_exporter_gets_only_its_declared_tasks(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFT_PLUGINS", "acme-exporters")
    check_export(ends_with("small", "embedding"))
    check_export(ends_with("hf", "reward"))
    with pytest.raises(UnsupportedLayout, match=r"'small' does not write models with model\.task reward") as caught:
        check_export(ends_with("small", "reward"))
    assert "--export.to hf" in caught.value.hint
    with pytest.raises(PluginError, match=r"'spelled' .* declares tasks as the str 'causal_lm'"):
        load_exporter("spelled")


def test_value_model_for_vllm_is_refused_in_config() -> None:
    install_objectives()
    settings = {"objective.name": "kit-values", "tuner.kind": "full", "model.path": "nowhere"}
    value = {**settings, "model.task": "value"}
    config_from_mapping({**value, "export.to": "hf"})
    with pytest.raises(UnsupportedLayout, match=r"'vllm' does not write models with model\.task value"):
        config_from_mapping({**value, "export.to": "vllm"})
