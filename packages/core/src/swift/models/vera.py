"""The directions of VeRA (arXiv:2310.11454), which all layers share: drawn from a key, as PEFT draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch


def vera_directions(key: int, rank: int, *, inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A [rank, inputs] and B [outputs, rank] for the widest of the adapted layers; others take a part."""
    generator = torch.Generator().manual_seed(key)
    a, b = torch.empty(rank, inputs), torch.empty(outputs, rank)
    for matrix in (a, b):
        bound = math.sqrt(6 / matrix.shape[1])
        matrix.uniform_(-bound, bound, generator=generator)
    return a, b


class VeraMerge:
    """Merges the vectors of layers, whose directions depend on the widest of them."""

    def __init__(self, settings: Mapping[str, int], shapes: Iterable[tuple[int, ...]]) -> None:
        outputs, inputs = (max(sizes) for sizes in zip(*shapes, strict=True))
        key = settings.get("projection_prng_key") or 0
        self._a, self._b = vera_directions(key, settings["r"], inputs=inputs, outputs=outputs)

    def merged(self, weight: torch.Tensor, scales: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """Return the weight with the directions added, scaled by the layer's two vectors."""
        height, width = weight.shape
        directions = scales[:, None].float() * self._a[:, :width]
        return weight + outputs[:, None].float() * (self._b[:height] @ directions)
