"""Adam-mini beside its formulas, and its blocks where a weight is cut across heads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import on_processes, succeeded

from swift.contracts import Matrix, Placement
from swift.optim.placements import _heads_of
from swift_tuning.optimizers import AdamMini
from swift_tuning.options import AdamMiniOptions

LR, DECAY, STEPS = 0.1, 0.5, 5
SHAPES = {"q_proj.weight": (12, 6), "o_proj.weight": (6, 12), "norm.weight": (6,), "o_proj.bias": (6,)}
HEADS = {"q_proj.weight": 3}


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def gradients() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [{name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()} for _ in range(STEPS)]


def block_of(name: str, values: torch.Tensor) -> torch.Tensor:
    """The mean over each block, spread out over the block again."""
    if name.endswith("bias"):
        return values
    if values.ndim == 1:
        return values.mean().expand_as(values)
    heads = HEADS.get(name, len(values))
    return values.view(heads, -1).mean(1, keepdim=True).expand(heads, values.numel() // heads).reshape(values.shape)


def by_the_paper() -> dict[str, torch.Tensor]:
    found, first, second = weights(), {}, {}
    for step, grads in enumerate(gradients(), start=1):
        for name, grad in grads.items():
            first[name] = 0.9 * first.get(name, 0.0) + 0.1 * grad
            second[name] = 0.95 * second.get(name, 0.0) + 0.05 * block_of(name, grad**2)
            update = first[name] / (1 - 0.9**step) / ((second[name] / (1 - 0.95**step)).sqrt() + 1e-8)
            found[name] = found[name] * (1 - LR * DECAY) - LR * update
    return found


def updated(cut: bool) -> dict[str, torch.Tensor]:
    """Whole weights after the last step, of which each process of the group had some rows, or all."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if cut else (0, 1)
    parameters, placements = [], []
    for name, whole in weights().items():
        # The norm is there in whole on every process, as under tensor parallelism.
        each = -(-len(whole) // size)
        rows = slice(rank * each, min(len(whole), (rank + 1) * each)) if cut and name != "norm.weight" else slice(None)
        region = tuple(slice(*part.indices(n)[:2]) for part, n in zip((rows, slice(None)), whole.shape, strict=False))
        parameters.append(torch.nn.Parameter(whole[region].clone()))
        matrices = (Matrix(name, 0, tuple(whole.shape)),)
        placements.append(
            Placement(
                name,
                tuple(whole.shape),
                region,
                matrices,
                heads=HEADS.get(name),
                processes=dist.group.WORLD if cut else None,
            )
        )
    group = {"params": parameters, "placements": placements, "lr": LR, "weight_decay": DECAY, "lr_scale": 1.0}
    optimizer: Any = AdamMini().make([group], AdamMiniOptions(), torch.device("cpu"))
    for grads in gradients():
        for parameter, placement in zip(parameters, placements, strict=True):
            parameter.grad = grads[placement.name][placement.region].clone()
        optimizer.step()
    found = {}
    for parameter, placement in zip(parameters, placements, strict=True):
        parts: list[Any] = [(placement.region, parameter.detach())]
        if cut:
            parts = [None] * size
            dist.all_gather_object(parts, (placement.region, parameter.detach()))
        found[placement.name] = torch.zeros(placement.shape)
        for region, part in parts:
            found[placement.name][region] = part
    slots = optimizer.matrix_slots()
    assert {name: each["block_avg_sq"].numel() for name, each in slots.items()} == {
        "q_proj.weight": 3,
        "o_proj.weight": 6,
        "norm.weight": 1,
    }
    return found


def grouped() -> dict[str, Any]:
    dist.init_process_group("gloo")
    try:
        return {name: value.numpy() for name, value in updated(cut=True).items()}
    finally:
        dist.destroy_process_group()


def test_adam_mini_shares_second_moments_by_block() -> None:
    """Heads rows and vectors share second moments and biases do not."""
    expected = by_the_paper()
    for name, value in updated(cut=False).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.full
def test_heads_that_are_cut_by_the_layout_are_heads_still() -> None:
    expected = by_the_paper()
    (answers,) = on_processes(2, grouped)  # six of twelve rows each, and four rows to a head
    for found in succeeded(answers):
        for name, value in found.items():
            torch.testing.assert_close(torch.from_numpy(value), expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_heads_are_those_of_queries_and_of_keys() -> None:
    class Model(torch.nn.Module):
        config = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, head_dim=8, hidden_size=16)

    heads = _heads_of(Model())
    assert heads("model.layers.0.self_attn.q_proj.weight", (32, 16)) == 4
    assert heads("model.layers.0.self_attn.k_proj.weight", (16, 16)) == 2
    assert heads("model.layers.0.self_attn.v_proj.weight", (16, 16)) is None
    assert heads("model.layers.0.self_attn.q_proj.lora_A.default.weight", (4, 16)) is None
    assert heads("model.layers.0.self_attn.q_proj.bias", (32,)) is None
