"""Whether samples are needed to quantise is said by the scheme; how many there must be, by core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model

from swift.config.sections import ExportOptions, ModelSection
from swift.contracts import SchemeFacts
from swift.data.encodings import encoding_of
from swift.errors import DataError
from swift.export.calibration import Calibration, _encoding, calibration_rows
from swift.models.source import open_source
from swift.plugins.load import load_exporter
from swift.plugins.schemes import OfferedScheme


def calibration(model: Path, said: list[str], *, calibrated: bool, **options: Any) -> Calibration:
    scheme = OfferedScheme("acme3", SchemeFacts("3-bit weights", calibrated=calibrated), load_exporter("hf"))
    source = open_source(ModelSection(path=str(model)), say=lambda _: None)
    return calibration_rows(ExportOptions(quant="acme3", **options), scheme, source, None, say=said.append)


def test_only_a_scheme_that_is_calibrated_needs_samples(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    few, many = tmp_path / "few.jsonl", tmp_path / "many.jsonl"
    row = json.dumps({"text": "a b c d e f g h " * 8})
    few.write_text(f"{row}\n" * 20)
    many.write_text(f"{row}\n" * 80)
    said: list[str] = []
    with pytest.raises(DataError, match="acme3 needs calibration samples, but"):
        calibration(model, said, calibrated=True)
    none = calibration(model, said, calibrated=False)
    assert (none.rows, none.described) == ([], "none")
    assert "a few fixed prompts only" in said[-1]
    with pytest.raises(DataError, match=r"few\.jsonl is too small for calibration: 20 samples, \d+ tokens"):
        calibration(model, said, calibrated=True, calibration_dataset=(str(few),))
    assert len(calibration(model, said, calibrated=False, calibration_dataset=(str(few),)).held_out) == 5
    enough = calibration(model, said, calibrated=True, calibration_dataset=(str(many),))
    tokens = sum(len(row.tokens) for row in enough.rows)
    assert (len(enough.rows), len(enough.held_out)) == (60, 20)
    assert enough.described == f"{many}: 60 samples, {tokens} tokens"
    assert said[-1] == f"{many} has only 60 calibration samples instead of 128"


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ({}, "chat"),
        ({"objective": {"name": "sft"}}, "chat"),
        ({"objective": {"name": "dpo", "beta": 0.5}}, "preference"),
    ],
)
def test_samples_are_read_as_the_objective_read_them(run: dict[str, Any], name: str) -> None:
    assert encoding_of(_encoding(run)).name == name
