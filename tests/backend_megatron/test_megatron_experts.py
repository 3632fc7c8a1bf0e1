"""Experts of limited capacity, and marks on their weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import megatron_imported  # noqa: F401
import pytest
import torch
from against_torch import MOE
from processes import on_processes, succeeded
from tiny_runs import Trained, conversations, run_training

from swift_backend_megatron.model import mark_experts
from swift_testing.subjects import write_model

ROWS = conversations(8)
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropping": {"backend.moe_capacity": 0.5},
    "room for all": {"backend.moe_capacity": 4.0},
    "padded to capacity": {"backend.moe_capacity": 2.0, "backend.moe_pad_to_capacity": True},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "moe", architecture="Qwen3Moe", **MOE)


@pytest.fixture(scope="module")
def runs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    out = tmp_path_factory.mktemp("out")

    def job(name: str, changes: dict[str, Any]) -> Trained:
        batches = {"train.global_batch": 8, "train.micro_batch": 8, "train.max_steps": 3}
        named = {"backend.name": "megatron", "logging.run_name": name.replace(" ", "-").replace(",", "")}
        return run_training(model, out, ROWS, {**batches, **named, **changes})

    alone = on_processes(1, *(partial(job, name, changes) for name, changes in RUNS.items()))
    return dict(zip(RUNS, (succeeded(each)[0] for each in alone), strict=True))


def test_tokens_are_dropped_only_on_request(runs: dict[str, Trained]) -> None:
    """A capacity of half the fair share drops tokens, which are counted; the other runs drop none."""
    plain = runs["plain"]
    assert abs(runs["dropping"].losses[0] - plain.losses[0]) > 1e-5 * plain.losses[0]
    assert 0.5 <= runs["dropping"].lines[1]["expert_load/dropped"] < 1.0
    assert "expert_load/dropped" not in plain.lines[1]
    for name in ("room for all", "padded to capacity"):
        assert runs[name].losses == pytest.approx(plain.losses, rel=1e-5)
        assert runs[name].grad_norms == pytest.approx(plain.grad_norms, rel=1e-4)
        assert runs[name].lines[1]["expert_load/dropped"] == 0.0


class Config:
    expert_model_parallel_size = 1
    expert_tensor_parallel_size = 1
    tensor_model_parallel_size = 2


def test_experts_are_marked() -> None:
    layer = torch.nn.Module()
    layer.experts = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("linear_fc1", "linear_fc2")})
    model = torch.nn.ModuleDict({"mlp": layer, "shared_experts": torch.nn.Linear(2, 2)})
    mark_experts([model], Config)
    assert not layer.experts["linear_fc1"].weight.allreduce
    assert layer.experts["linear_fc1"].weight.partition_dim == 0
    assert layer.experts["linear_fc2"].weight.partition_dim == 1
    assert not hasattr(model["shared_experts"].weight, "tensor_model_parallel")
