"""`swift config show` and a run refuse the same before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

import swift.cli.main as cli
from swift.config.obstacles import no_gpu_to_see

BASE = ["--model", "m", "--dataset", "d"]
REFUSED = [
    ("--streaming true", "nobody knows how many steps"),
    ("--streaming true --max_steps 5 --split_dataset_ratio 0.1", "data.split_ratio needs the whole data set"),
    ("--optim adamw_8bit --device cpu", "adamw_8bit"),
    ("--attn_impl flash_attn --device cpu", "this run is on cpu"),
    ("--dataset chats.jsnl data.jsonl", "There is no file or folder 'data.jsonl'"),
    ("--val_dataset ./test.jsonl", "There is no file or folder './test.jsonl'"),
]


@pytest.mark.parametrize(("line", "sentence"), REFUSED, ids=[line for line, _ in REFUSED])
def test_config_show_and_the_run_refuse_the_same(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = []
    for verb in (["config", "show", "sft"], ["sft"]):
        assert cli.run([*verb, *BASE, *line.split()]) == 2
        said.append(capsys.readouterr().err)
    assert sentence in said[0]
    assert said[0] == said[1]


def test_config_validate_accepts_what_another_machine_may_have(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["config", "validate", "sft", "--model", "m", "--dataset", "elsewhere.jsonl", "--optim", "adamw_8bit"]
    assert cli.run(line) == 0
    assert cli.run([*line, "--streaming", "true"]) == 2
    assert "nobody knows how many steps" in capsys.readouterr().err


def test_a_machine_is_only_said_to_have_no_gpu_where_that_is_certain() -> None:
    assert no_gpu_to_see("cpu", {})
    assert no_gpu_to_see("auto", {"CUDA_VISIBLE_DEVICES": ""})
    assert no_gpu_to_see("auto", {"CUDA_VISIBLE_DEVICES": "-1"})


@pytest.mark.parametrize("verb", ["sft", "rlhf"])
def test_help_of_config_show_for_a_verb_is_that_verbs(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["config", "show", verb, "-h"]) == 0
    shown = capsys.readouterr().out
    assert cli.run([verb, "--help"]) == 0
    assert shown == capsys.readouterr().out


def test_the_environment_of_a_launcher_shows_in_the_layout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", "4")
    assert cli.run(["config", "show", "sft", *BASE]) == 0
    assert "# processes on this machine: 4 = dp 4" in capsys.readouterr().out
    assert cli.run(["config", "show", "sft", *BASE, "--nnodes", "2", "--nproc_per_node", "2"]) == 0
    assert "# processes on 2 machines: 4 = dp 4" in capsys.readouterr().out
