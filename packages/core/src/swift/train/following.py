"""A role that moves towards the policy: each weight becomes a mixture of its own and the policy's.

Backends need no hook for it. Both models are read by `swift_iter_weights`, a whole tensor at a time, and the mixture
goes into the role by `swift_load_checkpoint`, as if it were read from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from swift.checkpoint.names import model_name

if TYPE_CHECKING:
    from swift.contracts import WeightStream

Named = tuple[str, torch.Tensor]


class MixtureReader:
    """Implements `swift.contracts.CheckpointReader` over two streams. Every process reads all of it."""

    manifest: Mapping[str, Any] = {}

    def __init__(self, own: WeightStream, policy: WeightStream, part: float, folder: Path) -> None:
        self.folder = folder
        self._mixed = _mixture(own, policy, part)
        self._waiting: dict[str, torch.Tensor] = {}
        """Tensors that came before they were asked for."""

    def names(self) -> list[str]:
        """Return no names: there is nothing here but weights, such as the state of an optimizer."""
        return []

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        """Fill these tensors in place, in the order in which the streams have them."""
        missing = dict(tensors)
        for name in [each for each in missing if each in self._waiting]:
            _fill(missing.pop(name), self._waiting.pop(name))
        while missing:
            name, whole = next(self._mixed)
            if name in missing:
                _fill(missing.pop(name), whole)
            else:
                self._waiting[name] = whole

    def read(self, name: str) -> torch.Tensor:
        """Return nothing: whole tensors are not asked for where there are no names."""
        raise KeyError(name)

    def close(self) -> None:
        """Read both streams to their ends: other processes may be inside of their collectives."""
        for _ in self._mixed:
            pass


def follow(own: WeightStream, policy: WeightStream, part: float, folder: Path) -> closing[MixtureReader]:
    """Return the reader of what `own` becomes: `part` of the policy's weights and the rest of its own."""
    return closing(MixtureReader(own, policy, part, folder))


@torch.no_grad()
def _mixture(own: WeightStream, policy: WeightStream, part: float) -> Iterator[Named]:
    for (name, before), (theirs, towards) in zip(own, policy, strict=True):
        assert name == theirs, f"{name} of the role stands where the policy has {theirs}"
        yield model_name(name), before.detach().float().mul(1 - part).add(towards.detach().float(), alpha=part)


@torch.no_grad()
def _fill(target: Any, whole: torch.Tensor) -> None:
    from swift.checkpoint.tensor_slices import (
        TensorSlices,  # with DTensor, which few runs need: every run imports this module
    )

    if isinstance(target, TensorSlices):
        for offset, view in target.slices.items():
            region = tuple(slice(start, start + size) for start, size in zip(offset, view.shape, strict=True))
            view.copy_(whole[region])
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(target, DTensor):
        whole = distribute_tensor(whole, target.device_mesh, target.placements)
    target.copy_(whole)
