"""Roles in a checkpoint: backends read and write canonical names, and core puts the owner in front of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from swift.checkpoint.names import owned_name

if TYPE_CHECKING:
    import torch

    from swift.contracts import CheckpointWriter


class OwnedWriter:
    """A `CheckpointWriter` that writes one role's tensors and facts into a checkpoint of several."""

    def __init__(self, writer: CheckpointWriter, owner: str) -> None:
        self._writer = writer
        self._owner = owner

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        """Hand over tensors by canonical name."""
        self._writer.tensors({owned_name(self._owner, name): tensor for name, tensor in tensors.items()})

    def stream(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Hand over whole tensors one at a time."""
        self._writer.stream((owned_name(self._owner, name), tensor) for name, tensor in tensors)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Hand over JSON values, which go by the owner in the manifest too."""
        self._writer.facts({f"{self._owner}/{name}": value for name, value in facts.items()})


def owned_facts(facts: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return those facts of a manifest that a role handed over, by the names that it gave them."""
    prefix = f"{owner}/"
    return {name.removeprefix(prefix): value for name, value in facts.items() if name.startswith(prefix)}
