"""The canonical checkpoint: every process hands over the boxes that it holds, as live views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from swift.checkpoint import TensorSlices
from swift.toolkit import (
    Piece,
    SlotsToRead,
    canonical_parameters,
    empty_slot,
    kept,
    load_matrix_slots,
    load_slots,
    matrix_tensors,
    model_name,
    optim_name,
    part_slices,
)
from swift_backend_fsdp.local import local_slice
from swift_backend_fsdp.shard import take_turn

if TYPE_CHECKING:
    from swift.contracts import CheckpointReader, CheckpointWriter, Run, Slot
    from swift_backend_fsdp.shard import FsdpState


def save(state: FsdpState, writer: CheckpointWriter) -> None:
    """Weights and optimizer state under canonical names."""
    writer.tensors(_tensors(state))
    writer.facts({"scaler": state.arithmetic.scaler.state_dict()})


def load(run: Run, state: FsdpState, reader: CheckpointReader) -> None:
    """Fill weights in place, and the optimizer's state, which is made where there is none yet."""
    reader.tensors(_weights(state))
    if _goes_on(run, state, reader):
        load_slots(state.optimizer, _slots_to_read(state, reader), reader)
        load_matrix_slots(state.optimizer, reader)
    scaler = reader.manifest.get("facts", {}).get("scaler")
    if scaler and state.arithmetic.scaler.is_enabled():
        state.arithmetic.scaler.load_state_dict(scaler)


def state_of(state: FsdpState) -> dict[int, torch.nn.Parameter]:
    """Parameter → the tensor that the optimizer knows it by."""
    return {id(part.parameter): part.local for part in state.parts}


def _goes_on(run: Run, state: FsdpState, reader: CheckpointReader) -> bool:
    """Give the weights of the next step their turn; return whether the stored state of the optimizer is theirs."""
    if state.turns is None:
        return True
    step = int(reader.manifest["step"])
    take_turn(run, state, step)
    return state.turns.goes_on(step)


def _slots_to_read(state: FsdpState, reader: CheckpointReader) -> Iterator[SlotsToRead]:
    stored, optimizer_tensors = set(reader.names()), state_of(state)
    for pieces, parameter in canonical_parameters(state.model):
        local = optimizer_tensors.get(id(parameter))
        if local is None:
            continue
        held: dict[str, torch.Tensor] = {}
        views: dict[str, Any] = {}
        for slot in state.slots.values():
            if slot.shape != "matrix" and optim_name(pieces[0].name, slot.name) in stored:
                held[slot.name] = empty_slot(slot, local)
                views |= _slot_views(slot, held[slot.name], pieces, parameter)
        yield SlotsToRead(local, held, views)


def _weights(state: FsdpState) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for pieces, parameter in canonical_parameters(state.model):
        local, region = local_slice(parameter)
        for piece in pieces:
            tensors[model_name(piece.name)] = _slices(piece, parameter, local, region)
    return tensors


def _tensors(state: FsdpState) -> dict[str, Any]:
    tensors, optimizer_tensors = _weights(state), state_of(state)
    for pieces, parameter in canonical_parameters(state.model):
        known_as = optimizer_tensors.get(id(parameter))
        for slot, value in () if known_as is None else kept(state.optimizer, known_as, state.slots):
            tensors |= _slot_views(slot, value, pieces, parameter)
    return tensors | matrix_tensors(state.optimizer, state.slots)


def _slot_views(slot: Slot, value: torch.Tensor, pieces: list[Piece], parameter: torch.Tensor) -> dict[str, Any]:
    _, region = local_slice(parameter)
    return {
        optim_name(piece.name, slot.name): _slices(piece, parameter, value, region) if slot.shape == "like" else value
        for piece in pieces
    }


def _slices(piece: Piece, parameter: torch.Tensor, held: torch.Tensor, region: tuple[slice, ...]) -> TensorSlices:
    """Return the part of one tensor on disk that lies in what this process holds of a parameter."""
    if piece.start == 0 and piece.numel == parameter.numel():
        offset = tuple(part.start for part in region)
        slices = [(offset, held)] if held.numel() else []
        return TensorSlices(piece.shape, slices, dtype=held.dtype)
    # Fused experts: a shard is a run of whole experts' rows, so that it lies in one piece.
    start = region[0].start * (parameter.numel() // parameter.shape[0])
    return TensorSlices(piece.shape, part_slices(piece.shape, piece.start, start, held.reshape(-1)), dtype=held.dtype)
