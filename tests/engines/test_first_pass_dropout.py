"""The first pass of a loss that compares rows has the dropout of the step, on every backend and in every region."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import on_processes, succeeded
from tiny_runs import BASE, pairs

from swift.config.parse import config_from_mapping
from swift.testing.objectives import install_objectives
from swift.testing.subjects import write_model
from swift.train.prepare import open_job

ROWS = pairs(12)
LORA: dict[str, Any] = {"tuner.kind": "lora", "tuner.dropout": 0.5}
BACKENDS: dict[str, dict[str, Any]] = {
    "fsdp": {"backend.name": "fsdp", "parallel.dp_shard": 2, **LORA},
    "deepspeed": {"backend.name": "deepspeed", "backend.config": "zero3", "parallel.dp_shard": 2, **LORA},
    "megatron tensors": {"backend.name": "megatron", "parallel.tp": 2, **LORA},
    "megatron stages": {"backend.name": "megatron", "parallel.pp": 2, "parallel.vpp": 2, **LORA},
}


def drifts(model: Path, out: Path, changes: dict[str, Any]) -> list[float]:
    """Return how far the vectors of each step are from those that were compared before it."""
    settings = {
        **BASE, "objective.name": "kit-negatives", "model.task": "embedding", "optim.lr": 1e-2,
        "train.micro_batch": 2, "train.global_batch": 8, "train.max_steps": 3,
        "model.path": str(model), "logging.output": str(out), "logging.report_to": [], **changes,
    }  # fmt: skip
    with open_job(config_from_mapping(settings), rows=ROWS) as job:
        found = []
        for step in range(3):
            batch = job.plan.batch(step, job.topology.data_rank, job.topology.data_size)
            ready, objective = job.ready(batch, training=True)
            found.append(job.hooks.train_step(job.run, job.state, ready, objective).metrics["drift"])
        return found


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors_of_the_first_pass_are_those_of_the_step(backend: str, tmp_path: Path) -> None:
    install_objectives()
    layers = {"num_hidden_layers": 4} if backend == "megatron stages" else {}
    model = write_model(tmp_path / "model", attention_dropout=0.3, **layers)
    (answers,) = on_processes(2, partial(drifts, model, tmp_path / "out", BACKENDS[backend]), fresh=True)
    assert [drift for found in succeeded(answers) for drift in found] == pytest.approx([0.0] * 6, abs=1e-10)
