"""The objectives of online learning with rounds that are stored: the rows of the data, with numbers for every token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swift.contracts import BatchSchedule
from swift_rl.critic import CRITIC, ValueLoss
from swift_rl.distill.objective import Gkd
from swift_rl.distill.options import GkdOptions
from swift_rl.objective import Grpo
from swift_rl.ppo import Ppo
from swift_rl.testing.reference import TEMPERATURE, taught, values_of

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift.data.batch import Batch, Row
    from swift.data.samples import Segment
    from swift_rl.options import PpoOptions

Given = Callable[["Segment", int], "Segment"]


class StoredGrpo(Grpo):
    """`grpo` on stored rounds."""

    name = "kit-grpo"
    encoding = "chat"  # type: ignore[assignment]  # the completions are those of the data

    def batch_schedule(self, context: ScheduleContext) -> BatchSchedule:
        """Return the schedule of the data, whose tokens have numbers."""
        return StoredRounds(context, _valued, TEMPERATURE)


class StoredPpo(Ppo):
    """`ppo` on stored rounds."""

    name = "kit-ppo"
    encoding = "chat"  # type: ignore[assignment]  # the completions are those of the data

    def batch_schedule(self, context: ScheduleContext) -> BatchSchedule:
        """Return the schedule of the data, whose tokens have numbers, and from which the critic learns too."""
        return StoredCriticRounds(context, self.options)


class StoredGkd(Gkd):
    """`gkd` with candidates that are given, and what a teacher said of them."""

    name = "kit-gkd"

    def __init__(self, options: GkdOptions) -> None:
        super().__init__(options)
        self.encoding = "chat"

    def check_config(self, config: Any) -> None:
        """Refuse nothing: no teacher is asked."""

    def batch_schedule(self, context: ScheduleContext) -> BatchSchedule:
        """Return the schedule of the data, whose tokens have candidates."""
        return StoredRounds(context, _taught, self.options.divergence_temperature)


class StoredRounds(BatchSchedule):
    """The batches of the data, epoch after epoch, with what a round would give to their tokens."""

    def __init__(self, context: ScheduleContext, given: Given, temperature: float) -> None:
        self.context = context
        self._given = given
        self._temperature = temperature
        self._rows = context.default()
        self.total_steps = self._rows.total_steps
        self.steps_per_epoch = self._rows.steps_per_epoch

    def epoch_at(self, step: int) -> float:
        """Return the passes over the data that are complete before this step."""
        return self._rows.epoch_at(step)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return this process's slice of a step."""
        batch = self._rows.batch(step, data_rank, data_size)
        spare = None if batch.spare_row is None else self._row(batch.spare_row)
        rows = [self._row(row) for row in batch.rows]
        return replace(batch, rows=rows, spare_row=spare, temperature=self._temperature)

    def _row(self, row: Row) -> Row:
        return tuple(
            replace(sample, segments=tuple(self._given(segment, sample.sample_id) for segment in sample.segments))
            for sample in row
        )


class StoredCriticRounds(StoredRounds):
    """Rounds from which a critic of its own learns before the policy."""

    def __init__(self, context: ScheduleContext, options: PpoOptions) -> None:
        super().__init__(context, _valued, TEMPERATURE)
        self._values = ValueLoss(options)

    def train_roles(self, step: int, batch: Batch) -> Mapping[str, float]:
        """Make the critic's step, where it is a model of its own."""
        if not self.context.roles:
            return {}
        result = self.context.role(CRITIC).train_step(batch, self._values)
        return {"critic/loss": result.loss, "critic/grad_norm": result.grad_norm}


def _valued(segment: Segment, sample: int) -> Segment:
    return replace(segment, token_values=values_of(sample, len(segment)))


def _taught(segment: Segment, sample: int) -> Segment:
    candidates, logps = taught(segment.input_ids, sample)
    return replace(segment, candidates=candidates, token_values={"teacher_logps": logps})
