"""Gradients of shards: passed to the optimizer, measured together, and clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

if TYPE_CHECKING:
    from swift_backend_fsdp.shard import FsdpState, TrainedShard


def set_gradients(state: FsdpState) -> None:
    """Give the optimizer's tensors the gradients that FSDP has left on the parameters."""
    for part in state.parts:
        gradient = part.parameter.grad
        if gradient is None:
            part.local.grad = None
            continue
        part.local.grad = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        if part.name in state.partial:
            dist.all_reduce(part.local.grad, group=state.meshes.tp.get_group())


def drop(state: FsdpState) -> None:
    """Drop the gradients of parameters and of their shards."""
    for part in state.parts:
        part.parameter.grad = None
        part.local.grad = None


def norm(state: FsdpState) -> float:
    """Return the norm of the whole gradient: every element of the model counts once, wherever it is stored."""
    device = state.arithmetic.device
    sharded = _sum_of_squares([part for part in state.parts if _is_sharded(part)], device)
    replicated = _sum_of_squares([part for part in state.parts if not _is_sharded(part)], device)
    if state.meshes.sizes.tp > 1:
        dist.all_reduce(sharded, group=state.meshes.tp.get_group())
    total = sharded + replicated
    dist.all_reduce(total, group=state.meshes.shards)
    return float(total.sqrt())


def clip(state: FsdpState, norm: float, limit: float) -> None:
    """Scale the gradient down to `limit`, as torch's own clipping does."""
    scale = limit / (norm + 1e-6)
    gradients = _gradients(state.parts)
    if scale < 1.0 and gradients:
        torch._foreach_mul_(gradients, scale)


def _gradients(parts: list[TrainedShard]) -> list[torch.Tensor]:
    return [part.local.grad for part in parts if part.local.grad is not None and part.local.grad.numel()]


def _sum_of_squares(parts: list[TrainedShard], device: torch.device) -> torch.Tensor:
    gradients = _gradients(parts)
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=device)
    norms = torch.stack(torch._foreach_norm(gradients))
    return norms.to(device).double().square().sum()


def _is_sharded(part: TrainedShard) -> bool:
    """Return whether tensor parallel processes hold different shards of the parameter."""
    parameter = part.parameter
    if not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names or ()
    return any(
        name == "tp" and not isinstance(placement, Replicate)
        for name, placement in zip(names, parameter.placements, strict=True)
    )
