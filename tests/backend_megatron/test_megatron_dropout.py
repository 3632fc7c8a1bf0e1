"""The first pass of a loss that compares rows has the dropout of the step, that of tensor parallel regions too."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import pytest
from processes import on_processes, succeeded
from tiny_runs import BASE, pairs

from swift.parsing import config_from_mapping
from swift.train.prepare import open_job
from swift_testing.objectives import install_objectives
from swift_testing.subjects import write_model

ROWS = pairs(12)
PLANS: dict[str, dict[str, Any]] = {"tensors": {"parallel.tp": 2}, "stages": {"parallel.pp": 2, "parallel.vpp": 2}}


def drifts(model: Path, out: Path, changes: dict[str, Any]) -> list[float]:
    """Return how far the vectors of each step are from those that were compared before it."""
    settings = {
        **BASE, "backend.name": "megatron", "tuner.kind": "lora", "tuner.dropout": 0.5,
        "objective.name": "kit-negatives", "model.task": "embedding", "optim.lr": 1e-2,
        "train.micro_batch": 2, "train.global_batch": 8, "train.max_steps": 3,
        "model.path": str(model), "logging.output": str(out), "logging.report_to": [], **changes,
    }  # fmt: skip
    with open_job(config_from_mapping(settings), rows=ROWS) as job:
        found = []
        for step in range(3):
            batch = job.batch_schedule.batch(step, job.topology.data_rank, job.topology.data_size)
            ready, objective = job.ready(batch, training=True)
            found.append(job.hooks.swift_train_step(job.run, job.state, ready, objective).metrics["drift"])
        return found


@pytest.mark.full
@pytest.mark.parametrize("plan", PLANS)
def test_vectors_of_the_first_pass_are_those_of_the_step(plan: str, tmp_path: Path) -> None:
    install_objectives()
    model = write_model(tmp_path / "model", attention_dropout=0.3, num_hidden_layers=4)
    (answers,) = on_processes(2, partial(drifts, model, tmp_path / "out", PLANS[plan]))
    assert [drift for found in succeeded(answers) for drift in found] == pytest.approx([0.0] * 6, abs=1e-10)
