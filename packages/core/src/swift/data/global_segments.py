"""Facts of segments that an objective compares with each other: those of a micro-batch, or of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from swift.data.batch import Batch, MicroBatch, collate
from swift.data.media import number_of


@dataclass(frozen=True)
class GlobalSegments:
    """Which segments make a sample, which of them count, and the numbers that samples carry."""

    sample_segments: torch.Tensor
    """int64 [samples]: how many segments each sample has; samples and segments lie in the same order."""
    counts: torch.Tensor
    """bool [segments]: whether a token of the segment has weight. No segment of a dummy counts."""
    values: dict[str, torch.Tensor]
    """Per sample: `Encoded.values`."""
    hashes: torch.Tensor
    """int64 [segments]: a number made of the segment's tokens and of the files of its images, the same for equal
    segments and for no others."""

    @classmethod
    def of(cls, batch: MicroBatch) -> GlobalSegments:
        """Return the facts of a micro-batch's segments, where its tensors are."""
        inside = batch.segment_ids >= 0
        ids, positions = batch.input_ids[inside], batch.position_ids[inside]
        hashes = _numbers(ids, positions, batch.segment_ids[inside], batch.segments)
        if batch.media is not None and batch.media.numbers is not None:
            hashes = hashes + batch.media.numbers[: batch.segments]  # a stand-in is the last, and no segment
        return cls(batch.sample_segments, batch.segment_sum((batch.weights > 0).float()) > 0, batch.values, hashes)

    @classmethod
    def of_slice(cls, batch: Batch) -> GlobalSegments:
        """Return the facts of the segments in a process's slice of a batch."""
        samples = [sample for row in batch.rows for sample in row]
        if not samples:
            none = torch.zeros(0, dtype=torch.int64)
            return cls(none, none.bool(), {}, none)
        found = cls.of(collate(samples, flat=True))
        held = [number_of(segment.media) for sample in samples for segment in sample.segments]
        return replace(found, hashes=found.hashes + torch.tensor(held, dtype=torch.int64))

    @classmethod
    def joined(cls, parts: Sequence[GlobalSegments]) -> GlobalSegments:
        """Return the facts of all parts, one after another; parts without samples have no values to tell."""
        parts = [part for part in parts if len(part.sample_segments)]
        return cls(
            torch.cat([part.sample_segments for part in parts]),
            torch.cat([part.counts for part in parts]),
            {name: torch.cat([part.values[name] for part in parts]) for name in parts[0].values},
            torch.cat([part.hashes for part in parts]),
        )

    @property
    def firsts(self) -> torch.Tensor:
        """Return the index of each sample's first segment."""
        return self.sample_segments.cumsum(0) - self.sample_segments

    @property
    def sample_of(self) -> torch.Tensor:
        """Return the index of the sample that each segment belongs to."""
        samples = torch.arange(len(self.sample_segments), device=self.sample_segments.device)
        return samples.repeat_interleave(self.sample_segments)


def _numbers(ids: torch.Tensor, positions: torch.Tensor, segment: torch.Tensor, segments: int) -> torch.Tensor:
    """Return a 64-bit hash of each segment's tokens and their positions; sums and products wrap around."""
    mixed = ids.long() * 0x1E3779B97F4A7C15 + (positions.long() + 1) * 0x3F58476D1CE4E5B9
    for factor in (0x14D049BB133111EB, 0x2545F4914F6CDD1D):
        mixed = (mixed ^ (mixed >> 29)) * factor
    mixed = mixed ^ (mixed >> 32)
    return torch.zeros(segments, dtype=torch.int64, device=ids.device).index_add(0, segment, mixed)
