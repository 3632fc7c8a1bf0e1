"""Cost of the order of an epoch: computed place by place, against the list that smaller data sets have."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import numpy as np

from benchmarks.facts import Figure
from swift.data.plans import BatchLayout, EpochPlan, epochs

SAMPLES = 10_000_000
ROWS = 64
STEPS = 2_000


class _Lengths:
    """A data set of which only the number of samples is known."""

    def __init__(self, count: int) -> None:
        self.lengths = np.broadcast_to(np.int32(5), count)


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    steps = 100 if quick else STEPS
    _cost(SAMPLES, 2, epochs.LISTED)  # imports what is imported once
    computed, ten_times = _cost(SAMPLES, steps, epochs.LISTED), _cost(10 * SAMPLES, steps, epochs.LISTED)
    listed = _cost(SAMPLES, steps, 2 * SAMPLES)
    figures = [
        Figure("memory of two epochs of 10M samples", computed["peak_mib"], unit="MiB", at_most=1),
        Figure("memory of 100M over that of 10M", ten_times["peak_mib"] / computed["peak_mib"], at_most=1.1),
        Figure("memory of two epochs of 10M samples, as lists", listed["peak_mib"], unit="MiB"),
        Figure(f"CPU time of a step's {ROWS} rows", computed["step_us"], unit="us"),
        Figure("CPU time before the first step", computed["begin_ms"], unit="ms"),
        Figure("CPU time before the first step, as lists", listed["begin_ms"], unit="ms"),
    ]
    return figures, {"10M": computed, "100M": ten_times, "10M as lists": listed, "steps": steps}


def _cost(samples: int, steps: int, listed: int) -> dict[str, float]:
    before, epochs.LISTED = epochs.LISTED, listed
    try:
        tracemalloc.start()
        begin = time.process_time()
        plan = _plan(samples)
        plan.rows_of(0)
        begun = time.process_time() - begin
        plan.rows_of(plan.total_steps - 1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        begin = time.process_time()
        for step in range(steps):
            plan.rows_of(step)
        return {
            "peak_mib": peak / 2**20,
            "begin_ms": begun * 1e3,
            "step_us": (time.process_time() - begin) / steps * 1e6,
        }
    finally:
        epochs.LISTED = before


def _plan(samples: int) -> EpochPlan:
    data: Any = _Lengths(samples)
    objective: Any = None
    return EpochPlan(data, objective, BatchLayout(global_rows=ROWS, micro_rows=1, seed=1, epochs=2.0))
