"""Embeddings on every backend: InfoNCE has the negatives of the global batch on every layout, and torch's numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import pytest
from processes import on_processes, succeeded
from tiny_runs import Trained, run_training

from swift_testing.subjects import write_model

ROWS = [
    {"query": f"find {number}", "pos": [f"here is {number}"], "neg": [f"not {number + 1}"] * (number % 2)}
    for number in range(100, 122)
]
"""Two batches of eight and one of six, for two processes of which each has several micro-batches."""
SETTINGS: dict[str, Any] = {
    "objective.name": "embedding", "objective.include_qq": True, "objective.matryoshka_dims": [64, 16],
    "train.global_batch": 8, "train.micro_batch": 2, "train.max_steps": 4, "train.eval_steps": 4, "optim.eps": 1e-6,
}  # fmt: skip
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, {"backend.name": "fsdp"}),
    "deepspeed": (2, {"backend.name": "deepspeed", "backend.config": "zero3"}),
    "megatron": (4, {"backend.name": "megatron", "parallel.tp": 2, "parallel.pp": 2}),
}


def trained(model: Path, out: Path, changes: dict[str, Any]) -> Trained:
    return run_training(model, out, ROWS, {**SETTINGS, **changes}, validation=ROWS[:5])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def on_torch(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    run = partial(trained, model, tmp_path_factory.mktemp("torch"), {"train.micro_batch": 8})
    return succeeded(on_processes(1, run)[0])[0]


@pytest.mark.full
@pytest.mark.parametrize("backend", LAYOUTS)
def test_every_layout_has_the_numbers_of_one_process(
    model: Path, on_torch: Trained, tmp_path: Path, backend: str
) -> None:
    processes, plan = LAYOUTS[backend]
    (answers,) = on_processes(processes, partial(trained, model, tmp_path, plan))
    run = succeeded(answers)[0]
    assert run.losses == pytest.approx(on_torch.losses, rel=1e-4)
    assert run.grad_norms == pytest.approx(on_torch.grad_norms, rel=1e-4)
    for name in ("eval_loss", "eval_recall_at_1"):
        assert run.lines[4][name] == pytest.approx(on_torch.lines[4][name], rel=1e-4)
    assert run.losses[-1] < run.losses[0]
