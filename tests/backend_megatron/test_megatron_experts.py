"""What balances routers: counted as transformers counts it, off by default, and told apart from the objective."""

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
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from swift_backend_megatron.model import mark_experts
from swift_testing.reference import samples_of
from swift_testing.subjects import write_model

ROWS = conversations(8)
BALANCED = {"backend.moe_aux_loss": 0.1, "backend.moe_z_loss": 0.01}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "balanced": BALANCED,
    "balanced, packed": {**BALANCED, "data.packing": True, "data.max_length": 2048, "train.global_batch": 1},
    "dropping": {"backend.moe_capacity": 0.5},
    "room for all": {"backend.moe_capacity": 4.0},
    "padded to capacity": {"backend.moe_capacity": 2.0, "backend.moe_pad_to_capacity": True},
}
SHARED = {**BALANCED, "parallel.tp": 2, "parallel.sequence_parallel": True}
CUT = {**BALANCED, "parallel.cp": 2}
STAGES = {**BALANCED, "parallel.pp": 2, "train.micro_batch": 8}


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
    shared = on_processes(2, partial(job, "shared", SHARED), partial(job, "stages", STAGES), partial(job, "cut", CUT))
    names = [*RUNS, "shared", "stages", "cut"]
    return dict(zip(names, (succeeded(each)[0] for each in (*alone, *shared)), strict=True))


def routed(model: Path) -> tuple[float, float]:
    """Of the first step's samples, one by one and unpadded: the balance of each layer, and the size of its logits."""
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    behind = AutoTokenizer.from_pretrained(model)("\n").input_ids  # what the template ends with
    layers: list[list[torch.Tensor]] = [[] for _ in range(2)]
    for ((prompt, answer),) in samples_of(model, ROWS):
        said = reference(input_ids=torch.tensor([prompt + answer + behind]), output_router_logits=True).router_logits
        for layer, logits in zip(layers, said, strict=True):
            layer.append(logits.detach())
    whole = [torch.cat(layer) for layer in layers]
    chosen = MOE["num_experts_per_tok"]
    balance = [float(load_balancing_loss_func((each,), MOE["num_experts"], chosen)) / chosen for each in whole]
    size = [float(each.logsumexp(-1).square().mean()) for each in whole]
    return sum(balance) / 2, sum(size) / 2


@pytest.mark.parametrize("name", ["balanced", "balanced, packed", "shared", "stages", "cut"])
def test_router_losses_match_transformers(runs: dict[str, Trained], model: Path, name: str) -> None:
    """Losses of routers are logged as transformers computes them."""
    balance, size = routed(model)
    line = runs[name].lines[1]
    assert line["load_balancing_loss"] == pytest.approx(balance, rel=1e-4)
    # Processes that share tokens each count their own, of which there are not equally many.
    assert line["z_loss"] == pytest.approx(size, rel=0.02 if name in ("shared", "cut") else 1e-4)


def test_they_move_the_weights_and_are_no_part_of_the_loss(runs: dict[str, Trained]) -> None:
    plain, balanced = runs["plain"], runs["balanced"]
    assert "z_loss" not in plain.lines[1]
    assert balanced.losses[0] == pytest.approx(plain.losses[0], rel=1e-6)
    assert abs(balanced.grad_norms[0] - plain.grad_norms[0]) > 1e-4 * plain.grad_norms[0]
    for name in ("shared", "stages", "cut"):
        assert runs[name].losses == pytest.approx(balanced.losses, rel=1e-5)
        assert runs[name].grad_norms == pytest.approx(balanced.grad_norms, rel=1e-4)


def test_tokens_are_dropped_only_on_request(runs: dict[str, Trained]) -> None:
    plain = runs["plain"]
    assert abs(runs["dropping"].losses[0] - plain.losses[0]) > 1e-5 * plain.losses[0]
    for name in ("room for all", "padded to capacity"):
        assert runs[name].losses == pytest.approx(plain.losses, rel=1e-5)
        assert runs[name].grad_norms == pytest.approx(plain.grad_norms, rel=1e-4)


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
