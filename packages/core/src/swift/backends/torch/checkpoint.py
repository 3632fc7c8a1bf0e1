"""The canonical checkpoint of a replica: fp32 weights and optimizer state under Hugging Face names, as live views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from swift.checkpoint.names import model_name, optim_name
from swift.errors import CheckpointError
from swift.models.names import canonical_parameters
from swift.optim.slots import empty_slot, kept

if TYPE_CHECKING:
    from swift.backends.torch.shard import TorchState
    from swift.contracts import CheckpointReader, CheckpointWriter, Slot
    from swift.models.names import Piece


def save(state: TorchState, writer: CheckpointWriter) -> None:
    """Hand over views of the live tensors; the writer stages or writes them."""
    writer.tensors(_tensors(state))
    writer.facts({"scaler": state.arithmetic.scaler.state_dict()})


def load(state: TorchState, reader: CheckpointReader) -> None:
    """Make the optimizer's state where there is none yet, then fill weights and state in place."""
    slots: dict[str, list[str]] = {}
    for name in reader.names():
        if name.startswith("optim."):
            owner, _, slot = name.rpartition(".")
            slots.setdefault(f"{owner}.", []).append(slot)
    for pieces, parameter in canonical_parameters(state.model):
        if parameter.requires_grad:
            for name in slots.get(optim_name(pieces[0].name, ""), []):
                if name in state.slots:
                    held = _empty_slot(state.slots[name], parameter, pieces[0], reader)
                    state.optimizer.state[parameter][name] = held
    reader.tensors(_tensors(state))
    scaler = reader.manifest.get("facts", {}).get("scaler")
    if scaler and state.arithmetic.scaler.is_enabled():
        state.arithmetic.scaler.load_state_dict(scaler)


def _tensors(state: TorchState) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for pieces, parameter in canonical_parameters(state.model):
        for piece in pieces:
            tensors[model_name(piece.name)] = piece.view_of(parameter.detach())
        for slot, value in kept(state.optimizer, parameter, state.slots):
            for piece in pieces:
                tensors[optim_name(piece.name, slot.name)] = _slot_view(slot, value, piece, pieces)
    return tensors


def _slot_view(slot: Slot, value: torch.Tensor, piece: Piece, pieces: list[Piece]) -> torch.Tensor:
    """Return one piece's part: of what is like the weight, the same part; a step count belongs to every piece."""
    if slot.shape == "like":
        return piece.view_of(value)
    if slot.shape == "scalar" or len(pieces) == 1:
        return value
    raise CheckpointError(
        f"The optimizer keeps a state of shape {tuple(value.shape)} for fused experts ({piece.name}), which cannot be "
        "stored per expert.",
        hint="Use --optim.name adamw with this model.",
    )


def _empty_slot(slot: Slot, parameter: torch.nn.Parameter, piece: Piece, reader: CheckpointReader) -> torch.Tensor:
    """Return a tensor for the checkpoint to be read into."""
    if slot.shape == "own":  # 8-bit, factored: as stored
        return reader.read(optim_name(piece.name, slot.name)).to(parameter.device)
    return empty_slot(slot, parameter)
