"""Runs and checkpoints of every published version load for ever: those in the folders beside this file.

`make_runs.py` writes a folder when its version is released.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from make_runs import KINDS, ROWS, logits
from tiny_runs import conversations

from swift.cli.main import run
from swift.parsing import config_from_mapping
from swift.train.loop import train

HERE = Path(__file__).resolve().parent
VERSIONS = sorted(each.name for each in HERE.iterdir() if (each / "expected.json").is_file())
pytestmark = pytest.mark.skipif(not VERSIONS, reason="no runs are kept here until the first release: see make_runs.py")


@pytest.fixture(params=[(version, kind) for version in VERSIONS or ["none"] for kind in KINDS], ids="-".join)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, dict[str, Any]]:
    """The model and the run of an earlier version, copied to where they now are, and what came of it then."""
    version, kind = request.param
    shutil.copytree(HERE / version, tmp_path / "old", symlinks=True)
    expected = json.loads((tmp_path / "old/expected.json").read_text())[kind]
    return tmp_path / "old/model", tmp_path / "old" / kind, expected


def test_resumed_run_has_the_same_losses(old: tuple[Path, Path, dict[str, Any]]) -> None:
    model, folder, expected = old
    settings = json.loads((folder / "args.json").read_text())
    given = {
        **{key: value for key, value in settings.items() if "." in key},
        "model.path": str(model),
        "logging.output": str(folder.parent / "output"),
        "checkpoint.resume": str(folder / "checkpoint-2"),
    }
    train(config_from_mapping(given), rows=conversations(ROWS))
    lines = [json.loads(line) for line in (folder / "logging.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert [losses[step] for step in (1, 2, 3, 4)] == pytest.approx(expected["losses"], rel=1e-5)


def test_exported_run_has_the_same_logits(
    old: tuple[Path, Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folder, expected = old
    words = ["export", str(folder), "--to", "hf", "--out", str(tmp_path / "exported"), "--model", str(model)]
    assert run(words) == 0, capsys.readouterr().err
    assert logits(tmp_path / "exported", model) == pytest.approx(expected["logits"], abs=1e-5)


def test_configuration_of_a_run_is_read(old: tuple[Path, Path, dict[str, Any]]) -> None:
    assert run(["config", "show", "--config", str(old[1] / "config.yaml"), "--model", str(old[0])]) == 0
