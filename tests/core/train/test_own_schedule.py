"""An objective with a batch schedule of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import typed
from rounds_plugin import rounds_installed
from tiny_runs import conversations, run_training, write_jsonl
from transformers import AutoModelForCausalLM, AutoTokenizer

from swift.config.sections import DataSection
from swift.data.pipeline import prepare_data
from swift.data.samples import Encoded
from swift.errors import CheckpointError, ConfigError, PluginError, TrainingError

__all__ = ["rounds_installed"]

pytestmark = pytest.mark.usefixtures("rounds_installed")

ROWS = conversations(26)
ROUNDS: dict[str, Any] = {
    "objective.name": "rounds",
    "train.max_steps": 8,
    "train.global_batch": 4,
    "train.micro_batch": 2,
    "checkpoint.save_steps": 1,
}
TEXTS = [{"text": f"a document of class {index % 3} " * (1 + index % 4), "grade": index % 3} for index in range(18)]


def test_batch_schedule_first_step_matches_transformers(tied: Path, tmp_path: Path) -> None:
    """The first step of a batch schedule matches transformers on its rows."""
    trained = run_training(tied, tmp_path, ROWS, {**ROUNDS, "train.max_steps": 1})
    tokenizer = AutoTokenizer.from_pretrained(tied)
    section = DataSection(cache=tmp_path / "cache", workers=1)
    data = prepare_data(section, tokenizer, encoding="chat", seed=0, say=print, rows=ROWS).train
    assert data is not None
    model = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32).eval()
    sums, counts = [], []
    for index in range(8):
        (segment,) = data.samples[index].segments
        ids = torch.tensor(segment.input_ids[None].astype("int64"))
        with torch.no_grad():
            logps = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        sums.append(float((logps * torch.tensor(segment.weights[1:])).sum()))
        counts.append(float(segment.weights.sum()))
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    baseline = sum(means) / 8
    expected = -sum((means[i] - baseline) * sums[i] for i in range(4)) / sum(counts[:4])
    assert trained.losses == [pytest.approx(expected, rel=1e-4)]


@pytest.mark.parametrize("step", [3, 4], ids=["in the middle of a round", "between two rounds"])
def test_run_with_batch_schedule_resumes_exactly(tied: Path, tmp_path: Path, step: int) -> None:
    """A run with its own batch schedule is resumed to the same numbers."""
    whole = run_training(tied, tmp_path, ROWS, ROUNDS)
    manifest = json.loads((whole.folder / f"checkpoint-{step}" / "manifest.json").read_text())
    assert len(manifest["facts"]["progress"]["batch_schedule"]["advantages"]) == 8
    resume = {"checkpoint.resume": str(whole.folder / f"checkpoint-{step}"), "logging.run_name": "resumed"}
    rest = run_training(tied, tmp_path, ROWS, {**ROUNDS, **resume})
    later = {number: line for number, line in whole.lines.items() if number > step}
    for key in ("loss", "grad_norm", "advantage", "epoch"):
        ours, theirs = ([line[key] for line in lines.values()] for lines in (rest.lines, later))
        assert ours == pytest.approx(theirs, rel=1e-6), key


def test_batch_schedule_state_needs_its_schedule_to_resume(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint with the state of a batch schedule does not resume without it."""
    import rounds_plugin

    whole = run_training(tied, tmp_path, ROWS, {**ROUNDS, "train.max_steps": 2})
    monkeypatch.delattr(rounds_plugin.Rounds, "batch_schedule")
    resume = {"checkpoint.resume": str(whole.folder / "checkpoint-1"), "logging.run_name": "resumed"}
    with pytest.raises(CheckpointError, match="the state of an objective's own schedule"):
        run_training(tied, tmp_path, ROWS, {**ROUNDS, "train.max_steps": 2, **resume})


def _rewarded(monkeypatch: pytest.MonkeyPatch, **members: Any) -> list[int]:
    """Let the schedule evaluate and report; return what `close` was called with, a number for each call."""
    import rounds_plugin

    closed: list[int] = []
    rewards = {0: 0.1, 2: 0.5, 4: 0.9, 6: 0.4, 8: 0.2}
    mine = {
        "evaluation_metrics": ("reward", "length"),
        "evaluate": lambda schedule, step: {"reward": rewards[step], "length": 7},
        "metrics": lambda schedule, step: {"reward_of_round": step // 2, "advantage": 42.0},
        "close": lambda schedule: closed.append(1),
        **members,
    }
    for name, member in mine.items():
        monkeypatch.setattr(rounds_plugin.RoundsSchedule, name, member, raising=False)
    return closed


def test_batch_schedule_metrics_are_logged_and_choose_best(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics of a batch schedule are logged and choose the best checkpoint."""
    closed = _rewarded(monkeypatch)
    watched = {"train.eval_steps": 2, "checkpoint.save_steps": 2, "train.eval_on_start": True}
    trained = run_training(tied, tmp_path, ROWS, {**ROUNDS, **watched, "train.early_stopping": 2}, validation=ROWS[:2])
    lines = trained.lines
    assert lines[3]["reward_of_round"] == 1
    assert lines[3]["advantage"] == 42.0
    evaluated = {step: line["eval_reward"] for step, line in lines.items() if "eval_reward" in line}
    assert evaluated == {0: 0.1, 2: 0.5, 4: 0.9, 6: 0.4, 8: 0.2}
    assert "eval_loss" not in lines[4]
    assert lines[4]["eval_length"] == 7
    assert (trained.folder / "best-checkpoint").resolve().name == "checkpoint-4"
    assert closed == [1]


def test_unknown_batch_schedule_metric_is_refused_early(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metric that a batch schedule does not evaluate is refused before the first step."""
    closed = _rewarded(monkeypatch)
    changes = {**ROUNDS, "train.metric_for_best": "rewrad", "train.eval_steps": 2}
    with pytest.raises(ConfigError, match="Did you mean 'reward'"):
        run_training(tied, tmp_path, ROWS, changes)
    assert closed == [1]


@pytest.mark.full
def test_error_closing_batch_schedule_hides_no_run_error(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error from closing a batch schedule does not hide why the run failed."""

    def raising(schedule: Any, *_: Any) -> Any:
        raise KeyError("the engine")

    _rewarded(monkeypatch, evaluate=raising, close=raising)
    with pytest.raises(
        TrainingError, match=r"KeyError: 'the engine'. It was raised by .*rounds.* in evaluate of its schedule"
    ):
        run_training(tied, tmp_path, ROWS, {**ROUNDS, "train.eval_steps": 2})
    assert "in close of its schedule" in "".join(capsys.readouterr())
    _rewarded(monkeypatch, close=raising)
    with pytest.raises(PluginError, match="in close of its schedule"):
        run_training(
            tied,
            tmp_path,
            ROWS,
            {**ROUNDS, "train.max_steps": 1, "train.eval_strategy": "no", "logging.run_name": "whole"},
        )


def test_candidate_outside_vocabulary_stops_first_step(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate outside of the vocabulary stops the first step by name."""
    import rounds_plugin

    plain = rounds_plugin._with_advantage

    def with_candidate(sample: Encoded, advantage: float) -> Encoded:
        made = plain(sample, advantage)
        (segment,) = made.segments
        outside = np.full((len(segment), 1), 10**6)
        return replace(made, segments=(replace(segment, candidates=outside),))

    monkeypatch.setattr(rounds_plugin, "_with_advantage", with_candidate)
    with pytest.raises(PluginError, match=r"Sample \d+: token \d+ has the candidate 1000000, and the model's tokens"):
        run_training(tied, tmp_path, ROWS, {**ROUNDS, "train.max_steps": 1})


def test_plugin_encoding_trains_packed_streamed_and_evaluated(tied: Path, tmp_path: Path) -> None:
    """An encoding of a plugin's own trains packed streamed and evaluated."""
    settings = {
        "objective.name": "labelled",
        "data.cache": str(tmp_path / "cache"),
        "train.global_batch": 6,
        "train.micro_batch": 3,
        "train.max_steps": 3,
    }
    padded = run_training(tied, tmp_path, TEXTS, {**settings, "train.eval_steps": 3}, validation=TEXTS[:5])
    assert padded.lines[3]["eval_grade"] == pytest.approx(0.8)
    free = run_training(tied, tmp_path, TEXTS, {**settings, "data.padding_free": True, "logging.run_name": "free"})
    assert free.losses == pytest.approx(padded.losses, rel=1e-5)
    file = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    streamed = {"data.train": [str(file)], "data.streaming": True, "logging.run_name": "streamed"}
    assert run_training(tied, tmp_path, None, {**settings, **streamed}).losses == pytest.approx(padded.losses, rel=1e-5)
    packed = {**settings, "data.packing": True, "data.max_length": 220, "logging.run_name": "packed"}
    assert run_training(tied, tmp_path, TEXTS, {**packed, "train.global_batch": 2}).lines[1]["grade"] >= 0


def test_config_show_names_the_segments_of_a_plugins_encoding(tied: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    words = ["config", "show", "train", "--objective", "labelled", "--model", str(tied), "--dataset", "texts.jsonl"]
    shown = typed([*words, "--sample", "2"], tmp_path)
    assert shown.code == 0, shown.output
    assert "document: " in shown.output
    assert "grade 1" in shown.output
