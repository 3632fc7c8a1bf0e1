"""The kit's objective with a schedule of its own, which asks the model in training about the rows of each step.

What a step learns depends on the results of a pass over the weights that it is about to change, as in online learning
with rounds of one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from swift.config.sections import Section
from swift.contracts import BatchSchedule, LossSums, Need, ScheduleContext
from swift.objectives.base import BaseObjective, viewed

if TYPE_CHECKING:
    import numpy as np

    from swift.contracts import ModelView
    from swift.data.batch import Batch, MicroBatch
    from swift.data.samples import Encoded, SampleFacts

BEFORE = "before"
"""The log-probability of a token before the step."""


class LearnSurprises(BaseObjective[Section]):
    """Each token counts the more, the less likely it was before the step; by the ratio of probabilities."""

    name = "kit-plan"

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return the summed weights of the target tokens."""
        return sum(sample.loss_weight for sample in samples)

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum over the target tokens; without a schedule, the weights of now are those before the step."""
        logps = viewed(view.token_logps, Need.TOKEN_LOGPS)
        before = batch.token_values.get(BEFORE, logps.detach())
        ratio = (logps - before).exp()
        return LossSums((before * ratio * batch.weights).sum(), tokens={BEFORE: logps})

    def batch_schedule(self, context: ScheduleContext) -> RecordingSchedule:
        """Return the schedule that asks."""
        return RecordingSchedule(context)


class RecordingSchedule(BatchSchedule):
    """The rows of the data set, epoch after epoch, with the log-probabilities that the model gives their tokens."""

    def __init__(self, context: ScheduleContext) -> None:
        self._context = context
        self._rows = context.default()
        self.total_steps = self._rows.total_steps
        self.steps_per_epoch = self._rows.steps_per_epoch

    def epoch_at(self, step: int) -> float:
        """Return the passes over the data that are complete before this step."""
        return self._rows.epoch_at(step)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return this process's slice, once every process has evaluated its own."""
        batch = self._rows.batch(step, data_rank, data_size)
        results = iter(self._context.forward(batch, self._context.objective).tokens or ())
        return replace(batch, rows=[tuple(_valued(sample, results) for sample in row) for row in batch.rows])


def _valued(sample: Encoded, results: Iterator[Mapping[str, np.ndarray]]) -> Encoded:
    segments = (replace(segment, token_values=dict(next(results))) for segment in sample.segments)
    return replace(sample, segments=tuple(segments))
