"""The canonical checkpoint of a replica: fp32 weights and optimizer state under Hugging Face names, as live views."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from swift.checkpoint.names import model_name, optim_name
from swift.errors import CheckpointError
from swift.models.names import canonical_parameters

if TYPE_CHECKING:
    from swift.backends.torch.shard import TorchState
    from swift.contracts import CheckpointReader, CheckpointWriter
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
            for slot in slots.get(optim_name(pieces[0].name, ""), []):
                state.optimizer.state[parameter][slot] = _empty_slot(slot, parameter, pieces[0], reader)
    reader.tensors(_tensors(state))
    scaler = reader.manifest.get("facts", {}).get("scaler")
    if scaler and state.arithmetic.scaler.is_enabled():
        state.arithmetic.scaler.load_state_dict(scaler)


def _tensors(state: TorchState) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for pieces, parameter in canonical_parameters(state.model):
        for piece in pieces:
            tensors[model_name(piece.name)] = piece.view_of(parameter.detach())
        for slot, value in state.optimizer.state.get(parameter, {}).items():
            for piece in pieces:
                tensors[optim_name(piece.name, slot)] = _slot_view(value, parameter, piece, pieces)
    return tensors


def _slot_view(value: torch.Tensor, parameter: torch.Tensor, piece: Piece, pieces: list[Piece]) -> torch.Tensor:
    """A moment is cut like its parameter; a step count belongs to every piece."""
    if value.shape == parameter.shape:
        return piece.view_of(value)
    if value.numel() == 1 or len(pieces) == 1:
        return value
    raise CheckpointError(
        f"The optimizer keeps a state of shape {tuple(value.shape)} for fused experts ({piece.name}), which cannot be "
        "stored per expert.",
        hint="Use --optim.name adamw with this model.",
    )


def _empty_slot(slot: str, parameter: torch.nn.Parameter, piece: Piece, reader: CheckpointReader) -> torch.Tensor:
    """A tensor for the checkpoint to be read into."""
    if slot == "step":
        return torch.zeros((), dtype=torch.float32, device=parameter.device)
    if slot in ("exp_avg", "exp_avg_sq"):
        return torch.zeros_like(parameter, memory_format=torch.preserve_format)
    # State of an optimizer with slots of its own shapes (8-bit, factored): as stored.
    return reader.read(optim_name(piece.name, slot)).to(parameter.device)
