"""Gradients of shards: measured together, and clipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from swift_backend_fsdp.topology import Meshes


@dataclass
class TrainedShard:
    """A trained parameter, and this process's shard of it."""

    name: str
    parameter: nn.Parameter
    """As FSDP knows it: a DTensor."""
    local: nn.Parameter
    """The shard's memory as a plain tensor, for the optimizer."""


def norm(parts: Sequence[TrainedShard], meshes: Meshes, device: torch.device) -> float:
    """Return the norm of the whole gradient: every element of the model counts once, wherever it is stored."""
    sharded = _sum_of_squares([part for part in parts if is_sharded(part.parameter)], device)
    replicated = _sum_of_squares([part for part in parts if not is_sharded(part.parameter)], device)
    if meshes.sizes.tp > 1:
        dist.all_reduce(sharded, group=meshes.tp.get_group())
    total = sharded + replicated
    dist.all_reduce(total, group=meshes.shards)
    return float(total.sqrt())


def clip(parts: Sequence[TrainedShard], norm: float, limit: float) -> None:
    """Scale the gradient down to `limit`, as torch's own clipping does."""
    scale = limit / (norm + 1e-6)
    gradients = _gradients(parts)
    if scale < 1.0 and gradients:
        torch._foreach_mul_(gradients, scale)


def _gradients(parts: Sequence[TrainedShard]) -> list[torch.Tensor]:
    return [part.local.grad for part in parts if part.local.grad is not None and part.local.grad.numel()]


def _sum_of_squares(parts: Sequence[TrainedShard], device: torch.device) -> torch.Tensor:
    gradients = _gradients(parts)
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=device)
    norms = torch.stack(torch._foreach_norm(gradients))
    return norms.to(device).double().square().sum()


def is_sharded(parameter: torch.Tensor) -> bool:
    """Return whether tensor parallel processes hold different shards of the parameter."""
    if not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names or ()
    return any(
        name == "tp" and not isinstance(placement, Replicate)
        for name, placement in zip(names, parameter.placements, strict=True)
    )
