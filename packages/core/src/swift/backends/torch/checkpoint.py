"""The canonical checkpoint of a replica: fp32 weights and optimizer state under Hugging Face names, as live views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from swift.backends.torch.shard import take_turn
from swift.checkpoint.matrix_slots import load_matrix_slots, matrix_tensors
from swift.checkpoint.names import model_name, optim_name
from swift.errors import CheckpointError
from swift.models.names import canonical_parameters
from swift.optim.slots import SlotsToRead, empty_slot, kept, load_slots

if TYPE_CHECKING:
    from swift.backends.torch.shard import TorchState
    from swift.contracts import CheckpointReader, CheckpointWriter, Run, Slot
    from swift.models.names import Piece


def save(state: TorchState, writer: CheckpointWriter) -> None:
    """Pass views of the live tensors; the writer stages or writes them."""
    writer.tensors(_tensors(state))
    writer.facts({"scaler": state.arithmetic.scaler.state_dict()})


def load(run: Run, state: TorchState, reader: CheckpointReader) -> None:
    """Fill weights in place, and the optimizer's state, which is made where there is none yet."""
    reader.tensors(_weights(state))
    if _goes_on(run, state, reader):
        load_slots(state.optimizer, _slots_to_read(state, reader), reader)
        load_matrix_slots(state.optimizer, reader)
    scaler = reader.manifest.get("facts", {}).get("scaler")
    if scaler and state.arithmetic.scaler.is_enabled():
        state.arithmetic.scaler.load_state_dict(scaler)


def _goes_on(run: Run, state: TorchState, reader: CheckpointReader) -> bool:
    """Give the weights of the next step their turn; return whether the stored state of the optimizer is theirs."""
    if state.turns is None:
        return True
    step = int(reader.manifest["step"])
    take_turn(run, state, step)
    return state.turns.goes_on(step)


def _slots_to_read(state: TorchState, reader: CheckpointReader) -> Iterator[SlotsToRead]:
    stored = set(reader.names())
    for pieces, parameter in canonical_parameters(state.model):
        held: dict[str, torch.Tensor] = {}
        views: dict[str, torch.Tensor] = {}
        for slot in state.slots.values() if parameter.requires_grad else ():
            if slot.shape != "matrix" and optim_name(pieces[0].name, slot.name) in stored:
                held[slot.name] = _empty_slot(slot, parameter, pieces[0], reader)
                views |= _slot_views(slot, held[slot.name], pieces)
        yield SlotsToRead(parameter, held, views)


def _weights(state: TorchState) -> dict[str, torch.Tensor]:
    return {
        model_name(piece.name): piece.view_of(parameter.detach())
        for pieces, parameter in canonical_parameters(state.model)
        for piece in pieces
    }


def _tensors(state: TorchState) -> dict[str, torch.Tensor]:
    tensors = _weights(state)
    for pieces, parameter in canonical_parameters(state.model):
        for slot, value in kept(state.optimizer, parameter, state.slots):
            tensors |= _slot_views(slot, value, pieces)
    return tensors | matrix_tensors(state.optimizer, state.slots)


def _slot_views(slot: Slot, value: torch.Tensor, pieces: list[Piece]) -> dict[str, torch.Tensor]:
    return {optim_name(piece.name, slot.name): _slot_view(slot, value, piece, pieces) for piece in pieces}


def _slot_view(slot: Slot, value: torch.Tensor, piece: Piece, pieces: list[Piece]) -> torch.Tensor:
    """Return one piece's part: of what is like the weight, the same part; a step count belongs to every piece."""
    if slot.shape == "like":
        return piece.view_of(value)
    if slot.shape == "scalar" or len(pieces) == 1:
        return value
    raise CheckpointError(
        f"The optimizer state of the fused experts ({piece.name}) has shape {tuple(value.shape)}, which cannot be "
        "stored per expert.",
        hint="Type --optim.name adamw.",
    )


def _empty_slot(slot: Slot, parameter: torch.nn.Parameter, piece: Piece, reader: CheckpointReader) -> torch.Tensor:
    """Return a tensor for the checkpoint to be read into."""
    if slot.shape == "own":  # 8-bit, factored: as stored
        return reader.read(optim_name(piece.name, slot.name)).to(parameter.device)
    return empty_slot(slot, parameter)
