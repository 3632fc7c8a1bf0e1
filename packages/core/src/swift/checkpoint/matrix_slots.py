"""Optimizer slots of whole matrices, which lie where a matrix is updated and not with the parts of the weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from swift.checkpoint.names import optim_name
from swift.contracts import StoresMatrixSlots
from swift.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from swift.contracts import CheckpointReader, Slot


def matrix_tensors(optimizer: torch.optim.Optimizer, slots: Mapping[str, Slot]) -> dict[str, torch.Tensor]:
    """Return this process's slots of matrices by canonical names: whole tensors, which other processes may lack."""
    if not isinstance(optimizer, StoresMatrixSlots):
        return {}
    tensors = {}
    for matrix, held in optimizer.matrix_slots().items():
        for name, value in held.items():
            if name not in slots or slots[name].shape != "matrix":
                raise CheckpointError(
                    f"The optimizer keeps {name!r} for the matrix {matrix}, and declares no such slot.",
                    hint=f"Add Slot({name!r}, 'matrix') to the slots of the optimizer's plugin.",
                )
            tensors[optim_name(matrix, name)] = value
    return tensors


def load_matrix_slots(optimizer: torch.optim.Optimizer, reader: CheckpointReader) -> None:
    """Give the optimizer the slots of its matrices, as far as a checkpoint has any. Called on every process."""
    if not isinstance(optimizer, StoresMatrixSlots):
        return
    stored = set(reader.names())
    memory = {
        matrix: slots
        for matrix, slots in optimizer.empty_matrix_slots().items()
        if any(optim_name(matrix, name) in stored for name in slots)
    }
    reader.tensors({optim_name(matrix, name): each for matrix, slots in memory.items() for name, each in slots.items()})
    optimizer.take_matrix_slots(memory)
