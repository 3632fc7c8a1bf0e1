"""Classifiers and reward models learn what can be learned, each with a control that has nothing to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import run_training

from swift_demo.model import write_model
from swift_demo.scoring import DIGITS_SPREAD, class_rows, reward_rows

COMMON: dict[str, Any] = {
    "data.shuffle": True, "data.packing": True, "data.max_length": 1024, "train.micro_batch": 2, "optim.lr": 3e-3,
    "optim.warmup_steps": 10,
}  # fmt: skip


def learned(folder: Path, rows: tuple[list, list], steps: int, name: str, **settings: Any) -> dict[str, Any]:
    """Return what was measured on rows that were never learned from."""
    train, held_out = rows
    model = folder / "demo"
    if not model.exists():
        write_model(model)
    lasting = {"train.max_steps": steps, "train.eval_steps": steps, "logging.run_name": name}
    return run_training(model, folder, train, COMMON | lasting | settings, validation=held_out).lines[steps]


@pytest.mark.full
def test_largest_digit_is_learned_but_not_shuffled_labels(tmp_path: Path) -> None:
    """The largest digit of a text is learned and shuffled labels are not."""
    settings = {"objective.name": "seq_cls", "model.num_labels": 10}
    assert learned(tmp_path, class_rows(), 120, "classes", **settings)["eval_accuracy"] >= 0.95
    control = learned(tmp_path, class_rows(random_labels=True), 60, "shuffled", **settings)
    assert control["eval_accuracy"] < 0.25


@pytest.mark.full
def test_the_digits_that_occur_and_their_mean_are_learned(tmp_path: Path) -> None:
    several = {"model.num_labels": 10, "model.problem_type": "multi_label_classification"}
    settings = {"objective.name": "seq_cls"}
    assert learned(tmp_path, class_rows(kind="present"), 60, "present", **settings, **several)["eval_micro_f1"] >= 0.95
    rows = class_rows(kind="mean")
    variance = float(np.var([row["label"] for row in rows[1]]))
    mse = learned(tmp_path, rows, 100, "mean", **settings, **{"model.num_labels": 1})["eval_mse"]
    assert 1 - mse / variance > 0.95**2  # no more than the squared correlation


@pytest.mark.rare  # `swift demo --task rm`, which is always tried, learns the same
def test_reward_model_separates_right_from_wrong(tmp_path: Path) -> None:
    """A reward model tells a right completion from one with a wrong digit."""
    settings = {"objective.name": "rm", "optim.lr": 2e-3}
    write_model(tmp_path / "demo", spread=DIGITS_SPREAD)
    rows = reward_rows(pairs=6000)
    assert learned(tmp_path, rows, 250, "rm", **settings)["eval_reward_accuracy"] >= 0.97
    control = learned(tmp_path, reward_rows(random_labels=True), 60, "swapped", **settings)
    assert 0.3 < control["eval_reward_accuracy"] < 0.7
