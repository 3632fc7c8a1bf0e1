"""Batch schedules of distillation: which completions each step learns from, with the teacher's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swift.contracts import BatchSchedule
from swift_rl.distill.rounds import CompletionRounds
from swift_rl.distill.teacher import Teacher

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift.data.batch import Batch, Row
    from swift_rl.distill.options import GkdOptions

MEASURED = ("loss", "kl", "reverse_kl")
"""Metrics of an evaluation."""


def schedule_of(context: ScheduleContext, options: GkdOptions) -> BatchSchedule:
    """Return the schedule of a run: over the data alone, or in rounds that the student or the teacher generates."""
    if options.samples_student or options.seq_kd:
        return TaughtRounds(context, options)
    return TaughtData(context, options)


class _Taught(BatchSchedule):
    """The teacher and the evaluation, which both schedules share."""

    def __init__(self, context: ScheduleContext, options: GkdOptions) -> None:
        self._context = context
        self._options = options
        self.evaluation_metrics = () if context.validation is None else MEASURED
        self._teacher = Teacher(context, options)

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Return the divergence of the student from the teacher on the held-out rows."""
        rows = self._held_out(step)
        topology, size = self._context.topology, self._context.layout.global_rows
        sums = dict.fromkeys(("divergence", "kl", "reverse_kl"), (0.0, 0.0))
        for start in range(0, len(rows), size):
            batch = self._context.batch(step, rows[start : start + size], topology.data_rank, topology.data_size)
            batch = self._teacher.annotated(batch, is_taught=True)
            found = self._context.forward(batch, self._context.objective).metrics
            sums = {name: (sums[name][0] + found[name][0], sums[name][1] + found[name][1]) for name in sums}
        means = {name: total / weight if weight else 0.0 for name, (total, weight) in sums.items()}
        return {"loss": means["divergence"], "kl": means["kl"], "reverse_kl": means["reverse_kl"]}

    def close(self) -> None:
        """Close the teacher."""
        self._teacher.close()

    def _held_out(self, step: int) -> Sequence[Row]:
        samples = self._context.validation
        assert samples is not None
        return [(samples[index],) for index in range(len(samples))]


class TaughtData(_Taught):
    """The data, epoch after epoch, with the teacher's scores of its completions."""

    def __init__(self, context: ScheduleContext, options: GkdOptions) -> None:
        super().__init__(context, options)
        self._default = context.default()
        self.total_steps = self._default.total_steps
        self.steps_per_epoch = self._default.steps_per_epoch

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the data are complete before this step."""
        return self._default.epoch_at(step)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the data's batch."""
        return self._teacher.annotated(self._default.batch(step, data_rank, data_size), is_taught=True)

    def state(self) -> Mapping[str, Any]:
        """Return the state of the data's schedule."""
        return self._default.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._default.restore(state)


class TaughtRounds(_Taught):
    """Rounds of completions: the student's own, the teacher's, or those of the data."""

    def __init__(self, context: ScheduleContext, options: GkdOptions) -> None:
        super().__init__(context, options)
        self._rounds = CompletionRounds(context, options, self._teacher)
        self.steps_per_epoch: int | None = self._rounds.steps_per_epoch
        self.total_steps = self._rounds.total_steps
        self._facts: Mapping[str, float] = {}

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the prompts are complete before this step."""
        return self._rounds.epoch_at(step)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the completions that a step learns from."""
        rows, self._facts = self._rounds.rows(step)
        batch = self._context.batch(step, rows, data_rank, data_size)
        batch = batch if batch.weight else replace(batch, weight=1.0)
        return self._teacher.annotated(batch, is_taught=not self._facts["on_policy"])

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return the figures of the completions that a step learned from."""
        return self._facts

    def state(self) -> Mapping[str, Any]:
        """Return the folder of the rounds."""
        return self._rounds.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._rounds.restore(state)

    def close(self) -> None:
        """Close the engines."""
        try:
            self._rounds.close()
        finally:
            super().close()

    def _held_out(self, step: int) -> Sequence[Row]:
        if not self._options.reads_prompts_alone:
            return super()._held_out(step)
        return self._rounds.held_out(step)
