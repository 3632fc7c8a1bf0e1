"""When runs save, evaluate and log, what stays of it on disk, and which checkpoints can be resumed from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_runs import BASE, Trained, conversations, run_training

from swift.checkpoint.storage import INDEX
from swift.errors import CheckpointError, ConfigError
from swift.parsing import config_from_mapping
from swift.train import due
from swift.train.loop import train

ROWS = conversations(8)
HELD_OUT = conversations(3, seed=3)
EPOCHS = {"train.max_steps": None, "train.epochs": 7, "train.global_batch": 4, "checkpoint.save_last": True}
"""Fourteen steps, two in each of seven epochs."""


def checkpoints(trained: Trained) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in trained.folder.glob("checkpoint-*"))


def train_as_by_default(model: Path, output: Path, changes: dict[str, object], **more: object) -> Trained:
    """Train without the setting of tests that keeps all checkpoints."""
    name = str(changes.get("logging.run_name", "run"))
    settings = {**BASE, **EPOCHS, "model.path": str(model), "logging.output": str(output), **changes}
    del settings["checkpoint.keep"]
    summary = train(config_from_mapping(settings), rows=ROWS, **more)
    return Trained(summary, output / model.name / name)


def evaluated(trained: Trained) -> list[int]:
    return [step for step, line in trained.lines.items() if "eval_loss" in line]


def test_long_run_keeps_three_checkpoints_and_best(tiny: Path, tmp_path: Path) -> None:
    """A run of many epochs keeps three checkpoints and the best by default."""
    epochs = {"save_strategy": "epoch"}
    trained = train_as_by_default(tiny, tmp_path, epochs)
    assert checkpoints(trained) == [10, 12, 14]
    rising = {
        **epochs,
        "optim.lr": 2.0,
        "optim.warmup_steps": 0,
        "optim.schedule": "constant",
        "logging.run_name": "rising",
    }
    trained = train_as_by_default(tiny, tmp_path, rising, validation_rows=HELD_OUT)
    best = min(evaluated(trained), key=lambda step: trained.lines[step]["eval_loss"])
    assert best < 10
    assert checkpoints(trained) == [best, 10, 12, 14]
    everything = {**epochs, "checkpoint.keep": None, "logging.run_name": "all", "train.max_steps": 10}
    trained = run_training(tiny, tmp_path, ROWS, {**EPOCHS, **everything})
    assert checkpoints(trained) == [2, 4, 6, 8, 10]
    resumed = {**epochs, "checkpoint.resume": str(trained.folder), "logging.run_name": "all"}
    trained = train_as_by_default(tiny, tmp_path, resumed)
    assert checkpoints(trained) == [2, 4, 6, 8, 10, 12, 14], "a resumed run does not remove what it was told to keep"


def test_small_data_is_not_saved_after_each_epoch(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an interval, a run saves after as many whole epochs as have the fewest steps together."""
    monkeypatch.setattr(due, "FEWEST_STEPS", 5)
    assert checkpoints(train_as_by_default(tiny, tmp_path, {"train.max_steps": 13})) == [6, 12, 13]


def test_ratios_and_strategies_set_save_eval_and_log_steps(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts of all steps and strategies decide when a run saves evaluates and logs."""
    parts = {"save_steps": 0.5, "eval_steps": 0.25, "logging.steps": 0.3, "save_total_limit": "all"}
    trained = run_training(tiny, tmp_path, ROWS, {**EPOCHS, **parts}, validation=HELD_OUT)
    assert checkpoints(trained) == [7, 14]
    assert evaluated(trained) == [4, 8, 12, 14]
    assert list(trained.lines) == [1, 4, 5, 8, 10, 12, 14]
    config = (trained.folder / "config.yaml").read_text()
    assert "save_steps: 7" in config

    quiet = {"save_strategy": "no", "eval_strategy": "no", "logging_strategy": "no", "logging.run_name": "quiet"}
    trained = run_training(tiny, tmp_path, ROWS, {**EPOCHS, **quiet}, validation=HELD_OUT)
    assert (checkpoints(trained), evaluated(trained), list(trained.lines)) == ([14], [], [1, 14])

    best = {"save_strategy": "best", "eval_steps": 3, "logging_strategy": "epoch", "logging.run_name": "best"}
    rising = {"optim.lr": 1.0, "optim.warmup_steps": 0, "eval_on_start": True, "checkpoint.save_last": False}
    trained = run_training(tiny, tmp_path, ROWS, {**EPOCHS, **best, **rising}, validation=HELD_OUT)
    assert "Before step 1: eval_loss " in capsys.readouterr().out
    assert trained.lines[0]["eval_loss"] > 0
    lowest, expected = float("inf"), []
    for step in evaluated(trained)[1:]:
        if (loss := trained.lines[step]["eval_loss"]) < lowest:
            lowest = loss
            expected.append(step)
    assert checkpoints(trained) == expected
    assert list(trained.lines) == [0, 1, 2, 3, 4, 6, 8, 9, 10, 12, 14]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"save_strategy": "best", "eval_strategy": "no"}, "--eval_strategy epoch"),
        ({"early_stopping_patience": 2, "eval_strategy": "no"}, "--eval_strategy epoch"),
    ],
)
def test_options_needing_evaluation_are_refused_without_it(
    tiny: Path, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    """What waits for evaluations is refused where there are none."""
    with pytest.raises(ConfigError) as caught:
        run_training(tiny, tmp_path, ROWS, changes, validation=HELD_OUT)
    assert said in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())


def test_weights_only_and_other_optimizer_are_refused(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another optimizer and a checkpoint of weights alone are refused before weights load."""
    whole = run_training(tiny, tmp_path, ROWS, {"train.max_steps": 2, "checkpoint.save_last": True})
    alone = {"save_only_model": True, "logging.run_name": "alone"}
    weights = run_training(tiny, tmp_path, ROWS, {"train.max_steps": 2, "checkpoint.save_last": True, **alone})
    names = json.loads((weights.folder / "checkpoint-2" / INDEX).read_text())
    assert "optim." not in json.dumps(names)
    assert "model.model.embed_tokens.weight" in json.dumps(names)
    monkeypatch.setattr("swift.train.prepare.open_source", None)  # nothing gets so far
    adafactor = {"optim.name": "adafactor", "checkpoint.resume": str(whole.folder), "logging.run_name": "other"}
    for changes, said in (
        (adafactor, "saved with the optimizer adamw, and this run's is adafactor"),
        ({"checkpoint.resume": str(weights.folder), "logging.run_name": "again"}, "without the optimizer's state"),
    ):
        with pytest.raises(CheckpointError) as caught:
            run_training(tiny, tmp_path, ROWS, {"train.max_steps": 4, **changes})
        assert said in caught.value.message
        assert "--resume_only_model true" in (caught.value.hint or "")
    assert sorted(path.name for path in (tmp_path / tiny.name).iterdir()) == ["alone", "run"]


def test_weights_only_checkpoint_starts_at_step_zero(tiny: Path, tmp_path: Path) -> None:
    """Only the weights of a checkpoint start a run from step zero."""
    settings = {"train.max_steps": 3, "optim.lr": 1e-2, "optim.warmup_steps": 0, "checkpoint.save_last": True}
    first = run_training(tiny, tmp_path, ROWS, {**settings, "save_only_model": True}, validation=ROWS)
    again = {"resume_from_checkpoint": str(first.folder / "checkpoint-3"), "resume_only_model": True}
    second = run_training(
        tiny, tmp_path, ROWS, {**settings, **again, "eval_on_start": True, "logging.run_name": "two"}, validation=ROWS
    )
    second = Trained(second.summary, tmp_path / "checkpoint-3" / "two")  # a run's folder is named after its model
    assert list(second.lines) == [0, 1, 2, 3]
    assert second.losses[0] < 0.95 * first.losses[0], "it starts where the other ended"


def test_the_seed_of_the_data_decides_the_order_alone(tiny: Path, tmp_path: Path, recorder: list[str]) -> None:
    def order(name: str, **seeds: int) -> dict[int, list[int]]:
        changes = {"data.shuffle": True, "train.max_steps": 2, "logging.report_to": recorder, "logging.run_name": name}
        return run_training(tiny, tmp_path, ROWS, {**changes, "checkpoint.save_last": True, **seeds}).samples()

    assert order("a", seed=1, data_seed=5) == order("b", seed=2, data_seed=5) == order("c", seed=5)
    assert order("d", seed=1) != order("e", seed=1, data_seed=6)
    resume = {"checkpoint.resume": str(tmp_path / tiny.name / "d"), "train.max_steps": 3, "data.shuffle": True}
    with pytest.raises(CheckpointError, match="seed of the order of samples \\(it was 1, now 6\\)"):
        run_training(tiny, tmp_path, ROWS, {**resume, "seed": 1, "data_seed": 6, "logging.run_name": "f"})


def test_deterministic_is_limited_to_run_and_tf32_is_noted(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Deterministic kernels hold during the run alone, and TF32 is noted on the CPU."""
    run_training(tiny, tmp_path, ROWS, {"train.max_steps": 1, "full_determinism": True, "tf32": True})
    assert "train.tf32 is about GPUs and has no effect on the CPU." in capsys.readouterr().out
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
