"""Evaluation while training, the best checkpoint, early stopping, and how many checkpoints stay."""

from __future__ import annotations

import json
from pathlib import Path

import plain_torch
import pytest
import torch
from plain_torch import conversation_tokens, response_logp
from tiny_runs import conversations, run_training

from swift.errors import ConfigError

ROWS = conversations(20)
HELD_OUT = conversations(7, seed=3)
RUINOUS = {"optim.lr": 2.0, "optim.warmup_steps": 4, "optim.schedule": "constant"}
"""The model gets better on its first steps, and then is ruined."""


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


@pytest.mark.parametrize("layout", [{}, {"data.padding_free": True}, {"data.packing": True, "data.max_length": 128}])
def test_evaluation_is_token_mean_over_dataset(tiny: Path, tmp_path: Path, layout: dict[str, object]) -> None:
    """An evaluation is the mean over the tokens of the whole set."""
    changes = {**layout, "train.max_steps": 3, "train.eval_batch": 3, "checkpoint.save_last": True}
    trained = run_training(tiny, tmp_path, ROWS, changes, validation=HELD_OUT)
    model = plain_torch.load_model(trained.folder / "checkpoint-3").eval()
    samples = conversation_tokens(tiny, HELD_OUT)
    correct = 0
    with torch.no_grad():
        total = -sum(float(response_logp(model, tokens)) for tokens in samples)
        for prompt, answer in samples:
            logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            correct += int((logits.argmax(-1) == torch.tensor(answer)).sum())
    count = sum(len(answer) for _, answer in samples)
    last = trained.lines[3]
    assert last["eval_loss"] == pytest.approx(total / count, rel=1e-5)
    assert last["eval_token_acc"] == pytest.approx(correct / count)
    kept = (trained.folder / "val_dataset.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in kept] == HELD_OUT


def test_evaluating_and_saving_change_nothing_about_training(tiny: Path, tmp_path: Path) -> None:
    lora = {"tuner.kind": "lora", "optim.lr": 1e-2}
    busy = {**lora, "train.eval_steps": 1, "checkpoint.save_steps": 2, "logging.run_name": "busy"}
    watched = run_training(tiny, tmp_path, ROWS, busy, validation=HELD_OUT)
    assert watched.losses == run_training(tiny, tmp_path, ROWS, lora).losses


def test_a_held_out_part_is_not_trained_on(tiny: Path, tmp_path: Path, recorder: list[str]) -> None:
    changes = {"data.split_ratio": 0.2, "train.max_steps": 8, "logging.report_to": recorder}
    trained = run_training(tiny, tmp_path, ROWS, changes)
    seen = {sample for samples in trained.samples().values() for sample in samples}
    held_out = [json.loads(line) for line in (trained.folder / "val_dataset.jsonl").read_text().splitlines()]
    assert len(seen) == 16
    assert len(held_out) == 4
    assert not [row for row in held_out if row in [ROWS[sample] for sample in seen]]


def test_best_checkpoint_is_kept_and_linked(tiny: Path, tmp_path: Path) -> None:
    """The best checkpoint is kept and linked next to the newest."""
    changes = {**RUINOUS, "train.max_steps": 10, "train.eval_steps": 1, "checkpoint.save_steps": 1}
    trained = run_training(tiny, tmp_path, ROWS, {**changes, "checkpoint.keep": 2}, validation=HELD_OUT)
    losses = {step: line["eval_loss"] for step, line in trained.lines.items()}
    best = min(losses, key=lambda step: losses[step])
    assert 1 < best < 8
    assert checkpoints(trained.folder) == [best, 9, 10]
    assert (trained.folder / "best-checkpoint").resolve().name == f"checkpoint-{best}"
    assert (trained.folder / "last-checkpoint").resolve().name == "checkpoint-10"
    assert trained.summary.best_checkpoint == trained.folder / f"checkpoint-{best}"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_best_checkpoint_is_chosen_among_saved(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], asynchronous: bool
) -> None:
    """The best checkpoint is chosen among those that were saved."""
    # Every step is worse than the one before; steps 2, 4, 6 and 8 are evaluated, 3, 6 and 9 saved.
    changes = {**RUINOUS, "optim.warmup_steps": 0, "train.max_steps": 9, "train.eval_steps": 2}
    saving = {"checkpoint.save_steps": 3, "checkpoint.keep": 1, "checkpoint.asynchronous": asynchronous}
    trained = run_training(tiny, tmp_path, ROWS, {**changes, **saving}, validation=HELD_OUT)
    assert "make save_steps (3) a multiple of eval_steps (2)" in capsys.readouterr().out
    assert checkpoints(trained.folder) == [6, 9]
    assert (trained.folder / "best-checkpoint").resolve() == trained.folder / "checkpoint-6"


@pytest.mark.parametrize("metric", ["token_acc", "eval_token_acc"])
def test_more_is_better_unless_the_metric_is_a_loss(tiny: Path, tmp_path: Path, metric: str) -> None:
    changes = {"train.metric_for_best": metric, "train.eval_steps": 2, "checkpoint.save_steps": 2, "optim.lr": 1e-2}
    trained = run_training(tiny, tmp_path, ROWS, {**changes, "train.max_steps": 12}, validation=ROWS[:6])
    scores = {step: line["eval_token_acc"] for step, line in trained.lines.items() if "eval_token_acc" in line}
    best = max(scores, key=lambda step: scores[step])
    assert scores[best] > min(scores.values())
    assert (trained.folder / "best-checkpoint").resolve().name == f"checkpoint-{best}"


def test_training_stops_when_patience_is_at_its_end(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {**RUINOUS, "train.max_steps": 30, "train.eval_steps": 1, "train.early_stopping": 3}
    trained = run_training(tiny, tmp_path, ROWS, changes, validation=HELD_OUT)
    losses = [line["eval_loss"] for line in trained.lines.values()]
    best = losses.index(min(losses))
    assert trained.summary.steps == len(losses) == best + 1 + 3
    assert trained.summary.status == "completed"
    assert f"no better than loss {min(losses):.6g} of step {best + 1}" in capsys.readouterr().out
    assert checkpoints(trained.folder) == [trained.summary.steps], "what was reached is saved"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train.metric_for_best": "token_ac"}, "Did you mean 'token_acc'?"),
        ({"train.metric_for_best": "bleu"}, "They have: loss, token_acc."),
    ],
)
def test_unknown_metric_is_refused_before_training(
    tiny: Path, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_training(tiny, tmp_path, ROWS, changes, validation=HELD_OUT)
    assert sentence in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_early_stopping_without_a_validation_set_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no validation set"):
        run_training(tiny, tmp_path, ROWS, {"train.early_stopping": 2})
    assert not list(tmp_path.iterdir())


def test_epoch_strategy_saves_and_evaluates_each_epoch(tiny: Path, tmp_path: Path) -> None:
    """A run is saved and evaluated at the end of each epoch, and after its last step."""
    changes = {"train.max_steps": None, "train.epochs": 2.5, "train.micro_batch": 8, "checkpoint.save_last": True}
    trained = run_training(tiny, tmp_path, ROWS, changes, validation=HELD_OUT)
    assert [step for step, line in trained.lines.items() if "eval_loss" in line] == [3, 6, 8]
    assert checkpoints(trained.folder) == [3, 6, 8]
    assert [trained.lines[step]["epoch"] for step in (3, 6)] == [1.0, 2.0]
