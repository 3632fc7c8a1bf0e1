"""Base of objectives that compare the vectors of all rows of a global batch with each other.

A loss of this kind is no sum over rows, so that no micro-batch can compute its own part. Core therefore computes all
vectors once without gradient, gathers them, and asks for the gradient of the loss by each of them. The second pass
back-propagates these gradients through the model: what comes out is that of one micro-batch with all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need, Objective
from swift.objectives.base import Options, PerSampleObjective, viewed

if TYPE_CHECKING:
    import torch

    from swift.data.batch import MicroBatch
    from swift.data.global_segments import GlobalSegments

_GRADIENT, _LOSS, _VALUE, _WEIGHT = "gradient", "loss", "value.", "weight."


@dataclass
class Compared:
    """Results of comparing all samples; tensors have one value per sample, [samples]."""

    losses: torch.Tensor
    """The loss of each sample, 0 for one that does not count. Their sum is differentiable by the vectors."""
    metrics: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """Name → (value, weight): what is reported is the mean of the values so weighted."""


class AcrossRows(PerSampleObjective[Options]):
    """A sum over samples, each compared with all others of the global batch; a subclass defines `compare`."""

    needs = frozenset({Need.POOLED})

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.first_pass: Objective | None = SegmentVectors(Section())

    def compare(self, vectors: torch.Tensor, samples: GlobalSegments) -> Compared:
        """Return the loss of each sample, from float64 vectors of all segments, [segments, size].

        Called with the whole global batch, so that the gradient of the summed losses by `vectors` is complete. A dummy
        (`GlobalSegments.counts` is False for its segments) must neither have a loss nor be compared with.
        """
        raise TypeError(f"{type(self).__name__} must define compare(vectors, samples)")

    def from_first_pass(self, vectors: torch.Tensor, samples: GlobalSegments) -> Mapping[str, torch.Tensor]:
        """Return the gradient by each vector, and per sample its loss and metrics, at its first segment."""
        import torch

        with torch.enable_grad():
            vectors = vectors.detach().requires_grad_()
            compared = self.compare(vectors, samples)
            (gradient,) = torch.autograd.grad(compared.losses.sum(), vectors)

        def by_segment(values: torch.Tensor) -> torch.Tensor:
            values = values.detach().to(vectors.dtype)
            return values.new_zeros(len(vectors)).index_copy(0, samples.firsts, values)

        results = {_GRADIENT: gradient, _LOSS: by_segment(compared.losses)}
        for name, (value, weight) in compared.metrics.items():
            results |= {_VALUE + name: by_segment(value * weight), _WEIGHT + name: by_segment(weight)}
        return results

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sums over the micro-batch's samples."""
        from swift.data.global_segments import GlobalSegments

        vectors = viewed(view.pooled, Need.POOLED)
        known = batch.segment_values
        if _GRADIENT not in known:  # this micro-batch is the global batch
            compared = self.compare(vectors.double(), GlobalSegments.of(batch))
            pairs = compared.metrics.items()
            metrics = {name: ((value.detach() * weight).sum(), weight.sum()) for name, (value, weight) in pairs}
            return LossSums(loss=compared.losses.sum(), metrics={**metrics})
        names = [name.removeprefix(_VALUE) for name in known if name.startswith(_VALUE)]
        return LossSums(
            loss=(known[_GRADIENT] * vectors).sum(),
            reported=known[_LOSS].sum(),
            metrics={name: (known[_VALUE + name].sum(), known[_WEIGHT + name].sum()) for name in names},
        )


class SegmentVectors(PerSampleObjective[Section]):
    """The vectors of all segments, without a loss."""

    name = "segment vectors"
    needs = frozenset({Need.POOLED})

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the vectors."""
        vectors = viewed(view.pooled, Need.POOLED)
        return LossSums(loss=vectors.new_zeros(()), segments=vectors)
