"""Optimizer slots of each weight, as checkpoints of any backend read and write them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from swift.contracts import CheckpointReader, Slot, StoresSlots
from swift.errors import CheckpointError


def kept(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, slots: Mapping[str, Slot]
) -> Iterator[tuple[Slot, torch.Tensor]]:
    """Yield what an optimizer has kept for a parameter so far, which it must have declared, with its slot."""
    for name, value in _values(optimizer, parameter).items():
        slot = slots.get(name)
        if slot is None:
            raise CheckpointError(
                f"The optimizer keeps {name!r} for a weight but declares only the slots {', '.join(slots)}, so the "
                "checkpoint would lack it.",
                hint="Add it to the slots of the optimizer's plugin.",
            )
        held = value if torch.is_tensor(value) else torch.as_tensor(value, dtype=getattr(torch, slot.dtype))
        if slot.shape == "like" and held.shape != parameter.shape:
            raise CheckpointError(
                f"The optimizer declares that its slot {name!r} has the shape of the weight, "
                f"{tuple(parameter.shape)}, but keeps a tensor of shape {tuple(held.shape)}.",
                hint="Declare the slot with shape='own' in the optimizer's plugin.",
            )
        yield slot, held


def _values(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Mapping[str, Any]:
    if isinstance(optimizer, StoresSlots):
        return optimizer.slot_values(parameter)
    held: Mapping[str, Any] = optimizer.state.get(parameter, {})
    return held


def empty_slot(slot: Slot, parameter: torch.Tensor) -> torch.Tensor:
    """Return memory for a slot to be read into, where there is none yet."""
    if slot.shape == "like":
        return torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return torch.zeros((), dtype=getattr(torch, slot.dtype), device=parameter.device)


@dataclass(frozen=True)
class SlotsToRead:
    """Memory for the slots of one parameter, and where a checkpoint's tensors belong in it."""

    parameter: torch.Tensor
    """As the optimizer knows it."""
    values: Mapping[str, torch.Tensor]
    """By slot."""
    views: Mapping[str, Any]
    """By name in the checkpoint: plain tensors or slices over the same memory."""


def load_slots(optimizer: torch.optim.Optimizer, parameters: Iterable[SlotsToRead], reader: CheckpointReader) -> None:
    """Fill the optimizer's state from a checkpoint; where it keeps another form, one parameter after the other."""
    if isinstance(optimizer, StoresSlots):
        for each in parameters:
            reader.tensors(each.views)
            if each.values:
                optimizer.take_slots(each.parameter, each.values)
        return
    views: dict[str, Any] = {}
    for each in parameters:
        if each.values:
            optimizer.state[each.parameter].update(each.values)
            views.update(each.views)
    reader.tensors(views)
