"""NEFTune (arXiv:2310.05914): noise on the embeddings while training, by the place of each token.

The noise of a token follows from the seed, the step, the sample, the segment and the position in it, by arithmetic on
whole numbers. So it is the same on every device and in every layout, and each process computes that of its own tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from swift.data.batch import MicroBatch

_STEP = -0x61C8864680B583EB
"""2⁶⁴ divided by the golden ratio, as a signed number (splitmix64)."""
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_TOGETHER = 1 << 22
"""Numbers that are computed at once."""


class NeftuneNoise:
    """Adds noise to what an embedding returns, inside of `around(batch)` and while the embedding is in training."""

    def __init__(self, embedding: torch.nn.Module, alpha: float) -> None:
        self._alpha = alpha
        self._batch: MicroBatch | None = None
        self._segments: torch.Tensor | None = None
        embedding.register_forward_hook(self._add)

    @contextmanager
    def around(self, batch: MicroBatch, segments: torch.Tensor) -> Iterator[None]:
        """Inside, tokens are those of `batch`; `segments` are the segment ids of whole rows, which tell lengths."""
        self._batch, self._segments = batch, segments
        try:
            yield
        finally:
            self._batch = self._segments = None

    def _add(self, module: torch.nn.Module, _: Any, output: torch.Tensor) -> torch.Tensor:
        if self._batch is None or self._segments is None or not module.training:
            return output
        return output + neftune_noise(self._batch, self._segments, output.shape[-1], self._alpha).to(output.dtype)


@torch.no_grad()
def neftune_noise(batch: MicroBatch, whole_segments: torch.Tensor, width: int, alpha: float) -> torch.Tensor:
    """Return the noise of every token, uniform within ±alpha / √(tokens of the segment · width); 0 on padding."""
    inside = batch.segment_ids >= 0
    index = batch.segment_ids.clamp(min=0).long()
    keys = _mixed(_segment_keys(batch)[index] + batch.position_ids.long() * _STEP)
    counted = whole_segments[whole_segments >= 0].long()
    lengths = torch.bincount(counted, minlength=batch.segments + 1)
    size = torch.where(inside, alpha / (lengths[index] * width).clamp(min=1.0).sqrt(), 0.0).flatten()
    columns = torch.arange(1, width + 1, device=keys.device) * _STEP
    made = torch.empty(keys.numel(), width, device=keys.device)
    rows = max(1, _TOGETHER // width)
    for start in range(0, keys.numel(), rows):
        random_bits = _mixed(keys.flatten()[start : start + rows, None] + columns)
        # The 24 highest bits, which fp32 holds exactly, around 0.
        uniform = ((random_bits >> 40) & 0xFFFFFF).float() * 2.0**-23 - (1.0 - 2.0**-24)
        made[start : start + rows] = uniform * size[start : start + rows, None]
    return made.view(*keys.shape, width)


def _segment_keys(batch: MicroBatch) -> torch.Tensor:
    """Return a key for each segment, of the step, the sample and the segment's number in it."""
    device = batch.segment_ids.device
    samples = torch.tensor(batch.sample_ids, dtype=torch.int64, device=device)
    counts = batch.sample_segments.to(device)
    keys = _mixed(_mixed(torch.tensor(batch.step_seed, device=device)) + samples * _STEP).repeat_interleave(counts)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    keys = _mixed(keys + (torch.arange(len(keys), device=device) - first + 1) * _STEP)
    return keys if len(keys) else torch.zeros(1, dtype=torch.int64, device=device)


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Splitmix64's mixing of 64 bits, in torch's signed whole numbers, which wrap around."""
    numbers = (numbers ^ _shifted(numbers, 30)) * _FIRST
    numbers = (numbers ^ _shifted(numbers, 27)) * _SECOND
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)
