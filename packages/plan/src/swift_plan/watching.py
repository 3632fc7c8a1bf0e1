"""Watches the processes of a trial: seconds of their steps, and memory at most in each phase, written beside the run.

A trial's steps are not those of a run for people. First ones warm up, then some are timed, and then memory is looked
at: the C library gives back at once what is free, so that what is seen is what is used, and between phases the kernel
is told to forget the most that the process has had, so that each phase has a peak of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.files import replace_file

if TYPE_CHECKING:
    from swift.contracts import Run

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _PIECE = -1, -3, 65536
"""Of glibc's mallopt(3): pieces from so many bytes on are given back one by one, and others together."""

TRIAL = "SWIFT_PLAN_TRIAL"
"""Environment variable that makes a run a trial, whose processes are watched."""
FILE_NAME = "trial-{}.json"
BEFORE, LOADING, BACKWARD, UPDATE = "before", "loading", "forward and backward", "update"
"""Phases: before there is a model, to the first step, of a step until its optimizer is called, and from then on."""
TRAINING = (BACKWARD, UPDATE)
"""Those that count: few blocks have random weights, and whole models read theirs."""
WARM, TIMED, SEEN = 2, 3, 3
"""Steps of a trial that warm up, that are timed, and whose memory is seen; the first of these settles the C library."""


def is_trial() -> bool:
    """Return whether this run is one."""
    return bool(os.environ.get(TRIAL))


class TrialWatch:
    """Watches one process of a trial."""

    def __init__(self) -> None:
        self._begun: list[tuple[float, float]] = []
        self._memory = PeakMemory("cpu")
        self._peaks = {BEFORE: self._memory.ended()}
        self._phase = LOADING
        self._seen = False

    @contextmanager
    def step(self, run: Run, number: int) -> Iterator[None]:
        """Watch a step, the one with this number from 0; the last one writes what was seen."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        if not self._begun:
            self._memory = PeakMemory(run.topology.device)
            self._peaks[LOADING] = self._memory.ended()
            if run.topology.device.startswith("cuda"):
                self._peaks[BEFORE] = 0.0  # of the device
        self._begun.append((time.perf_counter(), time.process_time()))
        self._phase = BACKWARD
        if number >= WARM + TIMED:
            self._memory.give_back()
        self._seen = number > WARM + TIMED or number + 1 == run.total_steps
        hook = register_optimizer_step_pre_hook(lambda *_: self._update_begins())
        try:
            yield
        finally:
            hook.remove()
        self._mark(self._phase)
        if number + 1 == run.total_steps:
            replace_file(run.folder / FILE_NAME.format(run.world.rank), json.dumps(self._result()))

    def _update_begins(self) -> None:
        if self._phase == BACKWARD:  # an engine may call several optimizers
            self._mark(BACKWARD)
            self._phase = UPDATE

    def _mark(self, phase: str) -> None:
        peak = self._memory.ended()
        if self._seen:
            self._peaks[phase] = max(self._peaks.get(phase, 0.0), peak)

    def _result(self) -> Mapping[str, Any]:
        # From one beginning to the next, data and all.
        timed = self._begun[WARM : WARM + TIMED + 1]
        pairs = list(pairwise(timed if len(timed) > 1 else self._begun))
        return {
            "seconds": [after[0] - before[0] for before, after in pairs],
            "cpu_seconds": [after[1] - before[1] for before, after in pairs],
            "peaks": self._peaks,
        }


class PeakMemory:
    """The most bytes that a device's allocator, or on the CPU the process, has had since the last question."""

    def __init__(self, device: str) -> None:
        self._device = device

    def give_back(self) -> None:
        """Have the C library give back what is free, now and from now on: glibc's does where it is told."""
        library = ctypes.CDLL(None)
        if self._device == "cpu" and hasattr(library, "malloc_trim"):
            for parameter in _MMAP_THRESHOLD, _TRIM_THRESHOLD:
                library.mallopt(parameter, _PIECE)
            library.malloc_trim(0)

    def ended(self) -> float:
        """Return the peak of a phase that is over, and begin the next one."""
        if self._device.startswith("cuda"):
            import torch

            peak = float(torch.cuda.max_memory_allocated(self._device))
            torch.cuda.reset_peak_memory_stats(self._device)
            return peak
        try:
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # proc(5): resets the peak, and no more
        except OSError:
            import resource

            return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return float(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")))
