"""The kit's own objectives: least squares on what a head returns, to see that backends compute and train it.

One more compares all rows of a batch with each other, and one has a plan of its own (`swift_testing.own_schedule`). The
targets of least squares are made of a sample's own length, so that every layout has them, and the reference too. They
are installed for the time of a session, as a distribution of their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need
from swift.objectives.across_rows import AcrossRows, Compared
from swift.objectives.base import PerSampleObjective, viewed
from swift_objectives import PreferenceEncoding
from swift_testing.own_schedule import LearnSurprises
from swift_testing.third_party import install_plugins

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from swift.data import GlobalSegments
    from swift.data.batch import MicroBatch

SCALE = 50.0
"""Tokens that make a target of 1."""
TEMPERATURE = 0.2
"""Divisor of similarities."""


class _LeastSquares(PerSampleObjective[Section]):
    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the summed squares of what is wrong; segments without weight do not count."""
        counts = (batch.segment_sum((batch.weights > 0).float()) > 0).float()
        lengths = batch.segment_sum((batch.segment_ids >= 0).float())
        return LossSums(loss=self.wrong(view, batch, lengths / SCALE, counts).square().sum())

    def wrong(self, view: ModelView, batch: MicroBatch, targets: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return the differences between a view and its targets, 0 where they do not count."""
        raise NotImplementedError


class FitScores(_LeastSquares):
    """The score of label k ought to be k + 1 times the length of the segment."""

    name = "kit-scores"
    needs = frozenset({Need.SCORES})

    def wrong(self, view: ModelView, batch: MicroBatch, targets: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return one difference per segment and label."""
        scores = viewed(view.scores, Need.SCORES)
        factors = scores.new_tensor(range(1, scores.shape[1] + 1))
        return (scores - targets[:, None] * factors) * counts[:, None]


class FitValues(_LeastSquares):
    """The value of a token ought to be the length of the text before it."""

    name = "kit-values"
    needs = frozenset({Need.VALUES})

    def wrong(self, view: ModelView, batch: MicroBatch, targets: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return one difference per token with weight."""
        return (viewed(view.values, Need.VALUES) - batch.position_ids / SCALE) * (batch.weights > 0)


class FitVectors(_LeastSquares):
    """Every number of a segment's vector ought to be the length of the segment."""

    name = "kit-vectors"
    needs = frozenset({Need.POOLED})

    def wrong(self, view: ModelView, batch: MicroBatch, targets: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return one difference per segment and number."""
        vectors = viewed(view.pooled, Need.POOLED)
        return (vectors - targets[:, None]) * counts[:, None] / math.sqrt(vectors.shape[1])


class Negatives(AcrossRows[Section]):
    """The first sequence of a pair should be nearer to its second than to the second ones of all other pairs."""

    name = "kit-negatives"
    encoding = PreferenceEncoding()
    task = "embedding"

    def compare(self, vectors: torch.Tensor, samples: GlobalSegments) -> Compared:
        """Return the cross entropy of each pair among all pairs, by cosine similarity."""
        import torch

        vectors = torch.nn.functional.normalize(vectors, dim=-1)
        counts = samples.counts[0::2]
        similarities = vectors[0::2] @ vectors[1::2].T / TEMPERATURE
        similarities = similarities.masked_fill(~counts, -torch.inf)
        losses = torch.where(counts, -similarities.log_softmax(-1).diagonal(), 0.0)
        nearest = (similarities.argmax(-1) == torch.arange(len(counts), device=counts.device)).double()
        return Compared(losses, {"nearest": (nearest, counts.double())})

    def from_first_pass(self, vectors: torch.Tensor, samples: GlobalSegments) -> Mapping[str, torch.Tensor]:
        """Return the vectors too, so that the step can compare its own with them."""
        return {**super().from_first_pass(vectors, samples), "vector": vectors}

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return, as the metric 'drift', how far the vectors of the step are from those of the first pass as well."""
        sums = super().loss(view, batch)
        if "vector" in batch.segment_values:
            off = viewed(view.pooled, Need.POOLED).detach() - batch.segment_values["vector"]
            sums.metrics["drift"] = (off.square().sum(), off.shape[0])
        return sums


def install_objectives(*more: type[Any]) -> None:
    """Make the kit's objectives, or others, known by name in this process and in those that are forked from it."""
    kinds: tuple[type[Any], ...] = more or (FitScores, FitValues, FitVectors, Negatives, LearnSurprises)
    name = "-".join(["swift-testing", *(each.name for each in more)] if more else ["swift-testing-objectives"])
    install_plugins(name, *(("swift.objectives", each.name, each) for each in kinds))
