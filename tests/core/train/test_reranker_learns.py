"""Rerankers learn which of eight documents has the right number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiers import tiered
from tiny_runs import run_training

from swift_demo.model import write_model
from swift_demo.scoring import DIGITS_SPREAD, reranker_rows

COMMON: dict[str, Any] = {
    "data.shuffle": True, "data.packing": True, "data.max_length": 1024, "train.micro_batch": 2, "optim.lr": 2e-3,
    "optim.warmup_steps": 10,
}  # fmt: skip
YES_OR_NO = {
    "objective.name": "generative_reranker", "objective.positive_token": "y", "objective.negative_token": "n",
    "objective.instruction": None, "data.system": "?", "train.micro_batch": 3,
}  # fmt: skip
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "listwise": (
        {"objective.name": "reranker", "objective.loss": "listwise"},
        {"rows": 6400, "negatives": 3, "near": False},
        150,
    ),
    # As many right documents as wrong ones: of seven wrong ones it first learns to say no, for long. And a score that
    # says yes by itself, not next to others, takes more steps.
    "pointwise": (
        {"objective.name": "reranker", "objective.loss": "pointwise"},
        {"rows": 9600, "negatives": 1, "near": False},
        300,
    ),
    # One wrong document per query: of longer texts a step has fewer queries, and with seven each it is learned by some
    # seeds only.
    "generative": (
        {**YES_OR_NO, "objective.loss": "listwise"},
        {"rows": 9600, "negatives": 1, "near": False},
        150,
    ),
}
"""Settings, the rows that are learned from, and how many steps. Wrong documents that are learned from are any others,
those of the evaluation seven that are wrong in one digit."""


def ranked(folder: Path, kind: str, *, random_labels: bool = False, seed: int = 0, steps: int | None = None) -> float:
    """Return the mean reciprocal rank of the right document of queries that were never learned from."""
    settings, learned, enough = KINDS[kind]
    steps = steps or enough
    rows, held_out = reranker_rows(**learned, random_labels=random_labels, seed=seed, document=str)
    model = write_model(folder / "demo", spread=DIGITS_SPREAD, seed=seed)
    changes = {"train.max_steps": steps, "train.eval_steps": steps, "train.seed": seed}
    trained = run_training(model, folder, rows, COMMON | changes | settings, validation=held_out)
    return float(trained.lines[steps]["eval_mrr"])


@pytest.mark.parametrize("kind", tiered(KINDS, (), ("pointwise",)))
def test_positive_rises_but_not_with_random_labels(tmp_path: Path, kind: str) -> None:
    """The right document rises and where labels are random it does not."""
    assert ranked(tmp_path / "learned", kind) >= 0.95
    assert ranked(tmp_path / "control", kind, random_labels=True, steps=60) < 0.45  # by chance: 0.34
