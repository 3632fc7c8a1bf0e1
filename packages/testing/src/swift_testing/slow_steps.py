"""Steps that are slow for a reason, to see that the reason is found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from swift.train import Job, measured_at_any_cost

SLOW_AT = {2: "data", 3: "optimizer", 4: "late"}
"""Steps, counted from 1: one that waits for data, one with a slow update, one to which process 1 comes late."""
ASLEEP = 0.6
"""Seconds by which they are slow: much longer than a step of the kit's model."""
LATE_RANK = 1


@contextmanager
def slowed(job: Job) -> Iterator[None]:
    """Inside, steps of `SLOW_AT` sleep, and all are measured, whatever that costs."""
    at = 0
    schedule: Any = job.batch_schedule
    hooks: Any = job.hooks
    batch, train_step = schedule.batch, hooks.swift_train_step

    def sleep(reason: str) -> None:
        if SLOW_AT.get(at) == reason:
            time.sleep(ASLEEP)

    def slow_batch(step: int, *arguments: Any) -> Any:
        nonlocal at
        at = step + 1
        sleep("data")
        return batch(step, *arguments)

    def late_step(*arguments: Any) -> Any:
        if job.topology.world.rank == LATE_RANK:
            sleep("late")
        return train_step(*arguments)

    updates: set[int] = set()

    def slow_update(*_: Any) -> None:
        if at not in updates:  # once, however many optimizers there are
            sleep("optimizer")
        updates.add(at)

    hook = register_optimizer_step_post_hook(slow_update)
    schedule.batch, hooks.swift_train_step = slow_batch, late_step
    try:
        with measured_at_any_cost():
            yield
    finally:
        hook.remove()
        del schedule.batch, hooks.swift_train_step
