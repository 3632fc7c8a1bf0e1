"""Writers that pass on what backends write: under the names of a role, or without the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from swift.checkpoint.names import OPTIMIZER, owned_name, owner_of

if TYPE_CHECKING:
    import torch

    from swift.contracts import CheckpointWriter


class RenamingWriter:
    """A `CheckpointWriter` that passes tensors and facts on under other names."""

    def __init__(
        self, writer: CheckpointWriter, rename: Callable[[str], str | None], *, of_facts: Callable[[str], str] = str
    ) -> None:
        """`rename` returns the name of a tensor, or None to leave it out."""
        self._writer = writer
        self._rename = rename
        self._of_facts = of_facts

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        self._writer.tensors(dict(self._renamed(tensors.items())))

    def stream(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        self._writer.stream(self._renamed(tensors))

    def facts(self, facts: Mapping[str, Any]) -> None:
        self._writer.facts({self._of_facts(name): value for name, value in facts.items()})

    def _renamed(self, tensors: Any) -> Iterator[tuple[str, Any]]:
        return ((name, tensor) for old, tensor in tensors if (name := self._rename(old)) is not None)


def owned_writer(writer: CheckpointWriter, owner: str) -> RenamingWriter:
    """Return the writer of one role's tensors and facts into a checkpoint of several."""
    return RenamingWriter(writer, partial(owned_name, owner), of_facts=f"{owner}/{{}}".format)


def weights_only_writer(writer: CheckpointWriter) -> RenamingWriter:
    """Return a writer that leaves out the optimizer's state of every role."""
    return RenamingWriter(writer, lambda name: None if name.startswith(owned_name(owner_of(name), OPTIMIZER)) else name)


def owned_facts(facts: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return those facts of a manifest that a role has passed, by the names that it gave them."""
    prefix = f"{owner}/"
    return {name.removeprefix(prefix): value for name, value in facts.items() if name.startswith(prefix)}
