"""Decides which rank writes and reads which part of the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from swift.checkpoint.storage import Index, RankFile, StoredTensor, StoredTensors, rank_file
from swift.processes.comms import Comms


def assign_shards(tensors: Mapping[str, Any], comms: Comms) -> tuple[RankFile, Index]:
    """Agree on who writes what, and return this rank's file, with views as contents, and the whole index."""
    if comms.size == 1 and all(map(_is_whole, tensors.values())):
        file = rank_file(0)
        index = {name: StoredTensor.whole(tensor, file, name) for name, tensor in tensors.items()}
        return RankFile(file, {name: tensor.detach() for name, tensor in tensors.items() if tensor.numel()}), index
    from swift.checkpoint import dcp_plan as dcp

    return dcp.assign_shards(tensors, comms)


def fill(tensors: Mapping[str, Any], stored: StoredTensors) -> None:
    """Fill tensors that `stored` has in place: whole ones, and of others the part that this process holds."""
    parts = {}
    for name, tensor in tensors.items():
        if _is_whole(tensor):
            stored.fill(tensor, name)
        else:
            parts[name] = tensor
    if parts:
        from swift.checkpoint import dcp_plan as dcp

        dcp.fill(parts, stored)


def _is_whole(tensor: Any) -> bool:
    """Return whether it is nothing but a tensor: what is sharded (DTensor, TensorSlices) is of a class of its own."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)
