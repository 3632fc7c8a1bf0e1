"""A run on tokenised data that several jobs built, against the same run on the rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import typed
from tiny_runs import conversations, run_training, write_jsonl, write_model

from swift.cli.main import run


@pytest.mark.full
def test_a_run_on_joined_shards_is_the_run_on_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = write_model(tmp_path / "model")
    write_jsonl(tmp_path / "rows.jsonl", conversations(24))
    flags = ["--model", str(model), "--dataset", "rows.jsonl", "--max_length", "256", "--dataset_num_proc", "1"]
    for number in (2, 1, 3):
        done = typed(["data", "build", "sft", *flags, "--out", "tokens", "--shard", f"{number}/3"], tmp_path)
        assert done.code == 0, done.output
        assert f"shard-0000{number}-of-00003" in done.output
        if number == 1:
            done = typed(["data", "join", "tokens"], tmp_path)
            assert done.code != 0
            assert "missing: 3/3" in done.output
    done = typed(["data", "join", "tokens"], tmp_path)
    assert done.code == 0, done.output
    assert re.search(r"rows.jsonl: 24 rows, 24 samples", done.output)

    changes = {"data.max_length": 256, "data.shuffle": True, "data.packing": True, "train.max_steps": 4}
    runs = {
        name: run_training(model, tmp_path / f"out-{name}", None, {**changes, "data.train": [str(tmp_path / name)]})
        for name in ("rows.jsonl", "tokens")
    }
    assert runs["tokens"].losses == runs["rows.jsonl"].losses
    assert runs["tokens"].grad_norms == runs["rows.jsonl"].grad_norms


def test_build_without_folder_names_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "build", "sft", "--model", "x", "--dataset", "y.jsonl"]) == 2
    assert "--out tokens" in capsys.readouterr().err
    assert run(["data", "buidl"]) == 2
    assert "Did you mean 'build'?" in capsys.readouterr().err
    assert run(["data", "build", "--out", "t", "--shard", "0/8"]) == 2
    assert "--shard 3/8" in capsys.readouterr().err
