"""Heads under Megatron beyond the kit's cases: in low precision, and from an adapter of another backend."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import pytest
import torch
from against_torch import LORA
from processes import on_processes, succeeded
from tiny_runs import BASE, conversations, run_training

from swift.parsing import config_from_mapping
from swift.train.prepare import open_job
from swift_testing.objectives import install_objectives
from swift_testing.subjects import write_model

ROWS = conversations(8)
SCORES: dict[str, Any] = {
    "objective.name": "kit-scores", "model.task": "reward", "train.global_batch": 8, "train.max_steps": 3,
    "optim.lr": 3e-4, "optim.schedule": "constant", "optim.warmup_steps": 0,
}  # fmt: skip
MEGATRON = {"backend.name": "megatron"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    install_objectives()
    return write_model(tmp_path_factory.mktemp("models") / "tiny", tie_word_embeddings=True)


def stored_and_computed(model: Path, out: Path, plan: dict[str, Any]) -> tuple[bool, bool]:
    """Train one step; return whether the head has more bits than bfloat16, and is computed with when rounded to it."""
    settings = {**BASE, **SCORES, **MEGATRON, **plan, "model.path": str(model), "logging.output": str(out)}
    with open_job(config_from_mapping(settings), rows=ROWS) as job:
        batch = job.batch_schedule.batch(0, job.topology.data_rank, job.topology.data_size)
        job.hooks.swift_train_step(job.run, job.state, batch, job.objective)
        chunk = job.state.built.chunks[-1]
        head = chunk.output_layer.weight.detach()
        streamed = dict(job.hooks.swift_iter_weights(job.run, job.state))["score.weight"]
        rounded = streamed.bfloat16()
        return not torch.equal(streamed, rounded.float()), torch.equal(rounded, head)


@pytest.mark.parametrize("plan", [{"parallel.dp_shard": 2}, {"parallel.tp": 2}], ids=["sharded optimizer", "tensors"])
def test_a_head_in_bfloat16_has_fp32_weights_behind_it(model: Path, tmp_path: Path, plan: dict[str, Any]) -> None:
    (answers,) = on_processes(2, partial(stored_and_computed, model, tmp_path, {**plan, "model.dtype": "bfloat16"}))
    assert succeeded(answers) == [(True, True)] * 2


@pytest.mark.full
def test_adapter_with_head_resumes_from_another_backend(model: Path, tmp_path: Path) -> None:
    """Training continues from an adapter with a head of another backend."""
    lora = {**SCORES, **LORA, "train.micro_batch": 8}

    def first() -> list[float]:
        run_training(model, tmp_path / "first", ROWS, {**lora, "checkpoint.save_last": True})
        adapter = str(tmp_path / "first" / model.name / "run" / "checkpoint-3")
        return run_training(model, tmp_path / "torch", ROWS, {**lora, "tuner.adapter": adapter}).losses

    (on_torch,) = on_processes(1, first)
    adapter = tmp_path / "first" / model.name / "run" / "checkpoint-3"

    def second() -> list[float]:
        plan = {**MEGATRON, "parallel.tp": 2, "tuner.adapter": str(adapter)}
        return run_training(model, tmp_path / "megatron", ROWS, {**lora, **plan}).losses

    (answers,) = on_processes(2, second)
    assert succeeded(answers)[0] == pytest.approx(succeeded(on_torch)[0], rel=1e-4)
