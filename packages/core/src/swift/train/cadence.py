"""From "a tenth of all steps" and "once an epoch" to numbers of steps, once the length of a run is known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.contracts import BatchSchedule, StepRecord


def settle_intervals(config: Config, schedule: BatchSchedule) -> Config:
    """Return the configuration with whole numbers of steps for saving, evaluating and logging."""
    logging = config.logging
    every: float | None = logging.steps
    if logging.strategy != "steps":
        every = schedule.steps_per_epoch if logging.strategy == "epoch" else None
    return config.changed(
        checkpoint={"save_steps": _whole(config.checkpoint.save_steps, schedule)},
        train={"eval_steps": _whole(config.train.eval_steps, schedule)},
        logging={"strategy": "steps", "steps": _whole(every, schedule) or schedule.total_steps},
    )


def _whole(interval: float | None, schedule: BatchSchedule) -> int | None:
    """Return a part of all steps as steps, rounded up as the Trainer does."""
    if interval is None:
        return None
    return math.ceil(interval * schedule.total_steps) if interval < 1 else int(interval)


class LoggedSteps:
    """Tells which steps are logged: the first of a session, every `every`-th, the last, and each that was evaluated."""

    def __init__(self, every: float) -> None:
        self._every = every
        self.first: int | None = None
        """The first step that was asked about."""

    def takes(self, record: StepRecord) -> bool:
        """Return whether this step is logged. To be asked about each step, in order."""
        is_first = self.first is None
        if self.first is None:
            self.first = record.step
        is_last = record.step == record.total_steps
        return is_first or is_last or record.step % self._every == 0 or record.evaluation is not None
