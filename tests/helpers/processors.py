"""How tests, and the processes that they start, take turns on the processors of a machine that has few.

Most of what runs are two to four processes that tell each other something hundreds of times a second. Left alone, the
system spends more than it gains: it wakes one of them on the other processor, which has none of its memory at hand, or
lets it push aside the very process that has woken it, whose locks it then asks for in a loop.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress


def take_turns(environment: Mapping[str, str] = os.environ) -> None:
    """Keeps a worker of pytest-xdist, and all that it starts, on one processor where there is none to spare; and lets
    whoever runs come to its end first.
    """
    if not hasattr(os, "sched_setscheduler"):
        return
    workers = int(environment.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    own = processor_of(environment.get("PYTEST_XDIST_WORKER", ""), workers, os.sched_getaffinity(0))
    with suppress(OSError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if own is not None:
            os.sched_setaffinity(0, {own})


def processor_of(worker: str, workers: int, processors: Collection[int]) -> int | None:
    """Returns the processor of a worker, 'gw3' of five say; None where it may have any, to fill what others leave."""
    number, few = int(worker.removeprefix("gw") or 0), len(processors)
    if not worker or number >= workers // few * few:
        return None
    return sorted(processors)[number % few]
