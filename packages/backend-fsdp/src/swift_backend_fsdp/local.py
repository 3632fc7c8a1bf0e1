"""Where in a whole tensor the part lies that this process holds."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

Region = tuple[slice, ...]


def local_slice(tensor: torch.Tensor) -> tuple[torch.Tensor, Region]:
    """Return this process's shard of a tensor, and its location.

    Shards are rectangles. A plain tensor is one whole shard.
    """
    if not isinstance(tensor, DTensor):
        return tensor, tuple(slice(0, size) for size in tensor.shape)
    local: torch.Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]  # it stays a DTensor
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    # A process without a part has an offset at the end, or beyond it.
    starts = [min(start, size) for start, size in zip(offset, tensor.shape, strict=True)]
    return local, tuple(slice(start, start + size) for start, size in zip(starts, local.shape, strict=True))


def keep(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy this process's part of `whole` into its tensor."""
    local, region = local_slice(tensor)
    local.copy_(whole[region])
