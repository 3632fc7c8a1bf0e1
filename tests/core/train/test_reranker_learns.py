"""Rerankers learn which of eight documents has the right number; the others are wrong in one digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_runs import run_training

from swift.demo.model import write_model
from swift.demo.scoring import SPREAD, reranker_rows

COMMON: dict[str, Any] = {
    "data.shuffle": True, "train.micro_batch": 4, "optim.lr": 2e-3, "optim.warmup_steps": 15,
}  # fmt: skip
LISTWISE = {"objective.name": "reranker", "objective.loss": "listwise"}


def ranked(folder: Path, steps: int, *, random_labels: bool = False, seed: int = 0, **settings: Any) -> float:
    """Return the mean reciprocal rank of the right document of queries that were never learned from."""
    rows, held_out = reranker_rows(random_labels=random_labels, seed=seed, document="{}")
    model = write_model(folder / "demo", hidden=128, spread=SPREAD, seed=seed)
    changes = {"train.max_steps": steps, "train.eval_steps": steps, "train.seed": seed}
    trained = run_training(model, folder, rows, COMMON | changes | settings, validation=held_out)
    return float(trained.lines[steps]["eval_mrr"])


@pytest.mark.full
def test_the_right_document_rises_and_where_labels_are_random_it_does_not(tmp_path: Path) -> None:
    assert ranked(tmp_path / "learned", 300, **LISTWISE) >= 0.85
    assert ranked(tmp_path / "control", 60, random_labels=True, **LISTWISE) < 0.45  # by chance: 0.34
