"""The canonical stream of weights: each tensor is assembled from the boxes of all processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from swift.toolkit import as_plain_lora
from swift_backend_megatron import megatron_runtime
from swift_backend_megatron.checkpoint import views_of
from swift_backend_megatron.tensor_map import region_of

if TYPE_CHECKING:
    from swift.contracts import WeightStream
    from swift_backend_megatron.shard import MegatronState
    from swift_backend_megatron.tensor_map import MappedTensor, Offset

Extent = tuple["Offset", "Offset"]


def stream(state: MegatronState) -> WeightStream:
    """Yield every tensor, whole, on every process. Collective: all read it to its end."""
    yield from as_plain_lora(_whole_tensors(state))


def _whole_tensors(state: MegatronState) -> WeightStream:
    streamed = state.built.adapter_tensors or state.tensor_map.keys()
    owned = _owned(state)
    for name, mapped in state.tensor_map.items():
        if name in streamed:
            yield name, _whole(state, name, mapped, owned)


@torch.no_grad()
def _whole(state: MegatronState, name: str, mapped: MappedTensor, owned: set[tuple[str, Extent]]) -> torch.Tensor:
    whole = torch.zeros(mapped.shape, dtype=torch.float32, device=state.slicer.device)
    with megatron_runtime.active():
        for offset, view, shift in _views(state, mapped):
            if (name, (offset, tuple(view.shape))) in owned:
                whole[region_of(offset, view.shape)] = view + shift if shift else view
    # One process has each element and the others a zero: added up as whole numbers, every bit stays as it is.
    dist.all_reduce(whole.view(torch.int32) if whole.ndim else whole)
    return whole


def _views(state: MegatronState, mapped: MappedTensor) -> Iterator[tuple[Offset, torch.Tensor, float]]:
    for tile, offset, view in views_of(state, mapped):
        if not tile.replica:
            yield offset, view, tile.shift


def _owned(state: MegatronState) -> set[tuple[str, Extent]]:
    """Return the boxes that no process of lower rank has as well. Collective the first time."""
    if state.owned is not None:
        return state.owned
    with megatron_runtime.active():
        own = {
            (name, (offset, tuple(view.shape)))
            for name, mapped in state.tensor_map.items()
            for offset, view, _ in _views(state, mapped)
        }
    everyone: list[set[tuple[str, Extent]]] = [set() for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, own)
    for lower in everyone[: dist.get_rank()]:
        own -= lower
    state.owned = own
    return own
