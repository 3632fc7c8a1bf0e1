"""Scoring without learning: what a reference model says about each segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView
from swift.objectives.base import PerSampleObjective, segment_logps

if TYPE_CHECKING:
    from swift.data.batch import MicroBatch


class SegmentScore(PerSampleObjective[Section]):
    """The summed log-probability of each segment's targets; the loss is zero.

    With `adapters_off` the model underneath the adapter is asked, which is the reference of preference objectives.
    """

    name = "score"

    def __init__(self, adapters_off: bool) -> None:
        super().__init__(Section())
        self.adapters_off = adapters_off

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """`segments` holds the scores, in the order of the batch."""
        logps, _ = segment_logps(view, batch)
        scores = logps.detach()
        return LossSums(loss=scores.new_zeros(()), segments=scores)
