"""Checkpoints without the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from swift.checkpoint.names import OPTIMIZER, owned_name, owner_of

if TYPE_CHECKING:
    import torch

    from swift.contracts import CheckpointWriter


class WeightsOnlyWriter:
    """A `CheckpointWriter` that leaves out the optimizer's state of every role."""

    def __init__(self, writer: CheckpointWriter) -> None:
        self._writer = writer

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        """Hand over those tensors that are weights."""
        self._writer.tensors({name: tensor for name, tensor in tensors.items() if not _is_state(name)})

    def stream(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Hand over those whole tensors that are weights, one at a time."""
        self._writer.stream((name, tensor) for name, tensor in tensors if not _is_state(name))

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Hand over JSON values."""
        self._writer.facts(facts)


def _is_state(name: str) -> bool:
    return name.startswith(owned_name(owner_of(name), OPTIMIZER))
