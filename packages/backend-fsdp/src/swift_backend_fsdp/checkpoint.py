"""The canonical checkpoint: every process hands over the boxes that it holds, as live views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from swift.checkpoint import Boxes
from swift.toolkit import Piece, canonical_parameters, empty_slot, kept, model_name, optim_name, part_boxes
from swift_backend_fsdp.local import local_slice

if TYPE_CHECKING:
    from swift.contracts import CheckpointReader, CheckpointWriter
    from swift_backend_fsdp.shard import FsdpState


def save(state: FsdpState, writer: CheckpointWriter) -> None:
    """Weights and optimizer state under canonical names."""
    writer.tensors(_tensors(state))
    writer.facts({"scaler": state.arithmetic.scaler.state_dict()})


def load(state: FsdpState, reader: CheckpointReader) -> None:
    """Make the optimizer's state where there is none yet, then fill weights and state in place."""
    stored = set(reader.names())
    for pieces, parameter in canonical_parameters(state.model):
        local = state_of(state).get(id(parameter))
        if local is None:
            continue
        for name, slot in state.slots.items():
            if optim_name(pieces[0].name, name) in stored:
                state.optimizer.state[local][name] = empty_slot(slot, local)
    reader.tensors(_tensors(state))
    scaler = reader.manifest.get("facts", {}).get("scaler")
    if scaler and state.arithmetic.scaler.is_enabled():
        state.arithmetic.scaler.load_state_dict(scaler)


def state_of(state: FsdpState) -> dict[int, torch.nn.Parameter]:
    """Parameter → the tensor that the optimizer knows it by."""
    return {id(part.parameter): part.local for part in state.parts}


def _tensors(state: FsdpState) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    optimizer_tensors = state_of(state)
    for pieces, parameter in canonical_parameters(state.model):
        local, region = local_slice(parameter)
        for piece in pieces:
            tensors[model_name(piece.name)] = _boxes(piece, parameter, local, region)
        known_as = optimizer_tensors.get(id(parameter))
        for slot, value in () if known_as is None else kept(state.optimizer, known_as, state.slots):
            for piece in pieces:
                name = optim_name(piece.name, slot.name)
                tensors[name] = _boxes(piece, parameter, value, region) if slot.shape == "like" else value
    return tensors


def _boxes(piece: Piece, parameter: torch.Tensor, held: torch.Tensor, region: tuple[slice, ...]) -> Boxes:
    """Return the part of one tensor on disk that lies in what this process holds of a parameter."""
    if piece.start == 0 and piece.numel == parameter.numel():
        offset = tuple(part.start for part in region)
        boxes = [(offset, held)] if held.numel() else []
        return Boxes(piece.shape, boxes, dtype=held.dtype)
    # Fused experts: a shard is a run of whole experts' rows, so that it lies in one piece.
    start = region[0].start * (parameter.numel() // parameter.shape[0])
    return Boxes(piece.shape, part_boxes(piece.shape, piece.start, start, held.reshape(-1)), dtype=held.dtype)
