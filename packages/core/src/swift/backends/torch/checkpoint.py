"""The canonical checkpoint: fp32 weights and optimizer state under Hugging Face names, as live views.

And the canonical stream of weights, one whole tensor at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from swift.backends.torch.state import TorchState
from swift.checkpoint.matrix_slots import load_matrix_slots, matrix_tensors
from swift.checkpoint.names import model_name, optim_name
from swift.contracts import CheckpointReader, CheckpointWriter, Run, Slot, WeightStream
from swift.errors import CheckpointError
from swift.models.names import Piece, canonical_buffers, canonical_parameters, canonical_weights
from swift.optim.slots import SlotsToRead, empty_slot, kept, load_slots


def save(state: TorchState, writer: CheckpointWriter) -> None:
    """Pass views of the live tensors; the writer stages or writes them."""
    writer.tensors(_tensors(state))
    writer.facts({"scaler": state.arithmetic.scaler.state_dict()})


def load(run: Run, state: TorchState, reader: CheckpointReader) -> None:
    """Fill weights in place, and the optimizer's state, which is made where there is none yet."""
    stored = set(reader.names())
    buffers = {name: held for name, held in _buffers(state).items() if name in stored}
    reader.tensors(_weights(state) | buffers)
    if _keeps_optimizer_state(run, state, reader):
        load_slots(state.local_optimizer, _slots_to_read(state, reader), reader)
        load_matrix_slots(state.optimizer, reader)
    scaler = reader.manifest.get("facts", {}).get("scaler")
    if scaler and state.arithmetic.scaler.is_enabled():
        state.arithmetic.scaler.load_state_dict(scaler)


def stream(state: TorchState) -> WeightStream:
    """Yield every weight, whole. Collective: every process must read the stream to its end."""
    return canonical_weights(state.model, state.whole, state.part)


def _keeps_optimizer_state(run: Run, state: TorchState, reader: CheckpointReader) -> bool:
    """Train the layers of the next step; return whether the stored state of the optimizer is theirs."""
    if state.rotation is None:
        return True
    step = int(reader.manifest["step"])
    state.rotate(run, step)
    return state.rotation.keeps_state(step)


def _slots_to_read(state: TorchState, reader: CheckpointReader) -> Iterator[SlotsToRead]:
    stored = set(reader.names())
    for pieces, parameter in canonical_parameters(state.model):
        local = state.local(parameter)
        if local is None:
            continue
        held: dict[str, torch.Tensor] = {}
        views: dict[str, Any] = {}
        for slot in state.slots.values():
            if slot.shape != "matrix" and optim_name(pieces[0].name, slot.name) in stored:
                held[slot.name] = _empty_slot(slot, local, pieces[0], reader)
                views |= _slot_views(state, slot, held[slot.name], pieces, parameter)
        yield SlotsToRead(local, held, views)


def _weights(state: TorchState) -> dict[str, Any]:
    return {model_name(name): held for name, held in state.weights().items()}


def _buffers(state: TorchState) -> dict[str, Any]:
    """Return what training may change without an optimizer: biases of routers follow the load of experts."""
    return {
        model_name(piece.name): state.slices(piece, buffer)
        for pieces, buffer in canonical_buffers(state.model)
        if buffer.dtype == torch.float32
        for piece in pieces
    }


def _tensors(state: TorchState) -> dict[str, Any]:
    tensors = _weights(state) | _buffers(state)
    for pieces, parameter in canonical_parameters(state.model):
        local = state.local(parameter)
        for slot, value in () if local is None else kept(state.local_optimizer, local, state.slots):
            tensors |= _slot_views(state, slot, value, pieces, parameter)
    return tensors | matrix_tensors(state.optimizer, state.slots)


def _slot_views(
    state: TorchState, slot: Slot, value: torch.Tensor, pieces: list[Piece], parameter: torch.Tensor
) -> dict[str, Any]:
    """Return each piece's part: of what is like the weight, the same part; a step count belongs to every piece."""
    if slot.shape != "like":
        if slot.shape != "scalar" and len(pieces) > 1:
            raise CheckpointError(
                f"The optimizer state of the fused experts ({pieces[0].name}) has shape {tuple(value.shape)}, which "
                "cannot be stored per expert.",
                hint="Type --optim.name adamw.",
            )
        return {optim_name(piece.name, slot.name): value for piece in pieces}
    return {optim_name(piece.name, slot.name): state.slices(piece, parameter, value) for piece in pieces}


def _empty_slot(slot: Slot, local: torch.Tensor, piece: Piece, reader: CheckpointReader) -> torch.Tensor:
    """Return a tensor for the checkpoint to be read into."""
    if slot.shape == "own":  # 8-bit, factored: as stored
        return reader.read(optim_name(piece.name, slot.name)).to(local.device)
    return empty_slot(slot, local)
