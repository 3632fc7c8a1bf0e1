"""Decides which events are due after a step: an evaluation, a checkpoint, the end of the run."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

FEWEST_STEPS = 50
"""Steps between saves where nobody sets an interval: epochs of small data sets are saved together."""

if TYPE_CHECKING:
    from swift.contracts import StepRecord
    from swift.train.job import Job


class Due:
    """Decides which events are due after a step of one run, the same on every process."""

    def __init__(self, job: Job, signals: Sequence[int] = (), pause_at: int | None = None) -> None:
        self._job = job
        self._signals = signals
        self._pause_at = pause_at
        self.stopped = False
        """Whether the run is to end before its last step: by a signal to any of its processes, or at `pause_at`."""

    def agree(self, step: int) -> None:
        """Settle with the other processes whether the run is stopped, and which observers are switched off."""
        job = self._job
        stop_here = bool(self._signals) or step == self._pause_at
        stop, *failed = job.comms.each_any([stop_here, *job.hooks.failed()])
        job.hooks.switch_off(failed, job.run, job.comms)
        self.stopped = stop and not self._is_last(step)

    def evaluation(self, step: int) -> bool:
        """Return whether to evaluate: every `train.eval_steps`, and after the last step."""
        train = self._job.run.config.train
        return train.eval_strategy != "no" and (self._is_last(step) or self._every(step, train.eval_steps))

    def save(self, record: StepRecord) -> bool:
        """Return whether to save: as `checkpoint.save_strategy` says, and where the run ends."""
        checkpoint = self._job.run.config.checkpoint
        at_the_end = self._is_last(record.step) and checkpoint.save_last
        return self._to_be_kept(record) or at_the_end or self.end(record)

    def end(self, record: StepRecord) -> bool:
        """Return whether the run ends although steps are left: it is stopped, or no evaluation gets better."""
        return self.stopped or self.no_better(record)

    def no_better(self, record: StepRecord) -> bool:
        """Return whether `train.early_stopping` evaluations in a row, this step's the last of them, were no better."""
        return self._job.best.exhausted and record.evaluation is not None

    def _to_be_kept(self, record: StepRecord) -> bool:
        checkpoint = self._job.run.config.checkpoint
        if checkpoint.save_strategy == "no":
            return False
        if checkpoint.save_strategy == "best":
            return record.evaluation is not None and self._job.best.step == record.step
        return self._every(record.step, checkpoint.save_steps, 1 if checkpoint.save_strategy else FEWEST_STEPS)

    def _is_last(self, step: int) -> bool:
        return step == self._job.run.total_steps

    def _every(self, step: int, interval: float | None, fewest: int = 1) -> bool:
        """Return whether the interval is over; without one, as many epochs as have the fewest steps."""
        if interval is not None:
            return step % interval == 0
        schedule = self._job.batch_schedule
        if schedule.steps_per_epoch is None:
            return False
        return schedule.epoch_at(step) % ceil(fewest / schedule.steps_per_epoch) == 0
