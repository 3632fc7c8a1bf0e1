"""When weights are updated within a step: backends say so by `before_update`, and whoever measures a step listens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listener: UpdateTimes | None = None


class UpdateTimes:
    """Intervals of updates in Unix nanoseconds: each from the last `before_update` of a train step to the step's end.

    `settle` waits until what was asked of the device is done.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self.intervals: list[tuple[int, int]] = []
        self._settle = settle
        self._begin: int | None = None

    def begins(self, *, again: bool = True) -> None:
        """Note that an update begins now; not `again` where one of this step has begun before."""
        if again or self._begin is None:
            self._settle()
            self._begin = time.time_ns()

    def step_ends(self) -> None:
        """Note that a train step, of whichever model, is over."""
        self._settle()
        if self._begin is not None:
            self.intervals.append((self._begin, time.time_ns()))
            self._begin = None


@contextmanager
def listening(times: UpdateTimes) -> Iterator[None]:
    """Inside, `times` is told of updates."""
    global _listener
    _listener = times
    try:
        yield
    finally:
        _listener = None


def update_begins() -> None:
    """Tell who listens, if anyone does, that weights are about to change."""
    if _listener is not None:
        _listener.begins()


def step_ended() -> None:
    """Tell who listens, if anyone does, that a train step is over."""
    if _listener is not None:
        _listener.step_ends()
