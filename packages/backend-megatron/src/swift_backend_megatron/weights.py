"""The canonical stream of weights: each tensor is put together from the boxes of all processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from swift_backend_megatron import engine
from swift_backend_megatron.checkpoint import boxes_of

if TYPE_CHECKING:
    from swift.contracts import WeightStream
    from swift_backend_megatron.layout import Entry, Offset
    from swift_backend_megatron.shard import MegatronState

Region = tuple["Offset", "Offset"]


def stream(state: MegatronState) -> WeightStream:
    """Collective: every process reads it to its end."""
    wanted = state.built.adapter_tensors or state.layout.keys()
    mine = _answered_for(state)
    for name, entry in state.layout.items():
        if name in wanted:
            yield name, _whole(state, name, entry, mine)


@torch.no_grad()
def _whole(state: MegatronState, name: str, entry: Entry, mine: set[tuple[str, Region]]) -> torch.Tensor:
    whole = torch.zeros(entry.shape, dtype=torch.float32, device=state.cutter.device)
    with engine.active():
        for offset, view, shift in _held(state, entry):
            if (name, (offset, tuple(view.shape))) in mine:
                region = tuple(slice(start, start + size) for start, size in zip(offset, view.shape, strict=True))
                whole[region] = view + shift if shift else view
    # One process has each element and the others a zero: added up as whole numbers, every bit stays as it is.
    dist.all_reduce(whole.view(torch.int32) if whole.ndim else whole)
    return whole


def _held(state: MegatronState, entry: Entry) -> Iterator[tuple[Offset, torch.Tensor, float]]:
    for place, offset, view in boxes_of(state, entry):
        if not place.twin:
            yield offset, view, place.shift


def _answered_for(state: MegatronState) -> set[tuple[str, Region]]:
    """Boxes that no process of lower rank has as well."""
    if state.answered is not None:
        return state.answered
    with engine.active():
        own = {
            (name, (offset, tuple(view.shape)))
            for name, entry in state.layout.items()
            for offset, view, _ in _held(state, entry)
        }
    everyone: list[set[tuple[str, Region]]] = [set() for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, own)
    for lower in everyone[: dist.get_rank()]:
        own -= lower
    state.answered = own
    return own
