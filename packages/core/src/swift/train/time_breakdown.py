"""Where the time of a step goes, and on which process: measured on one step in many, gathered on logged steps.

    meter = StepMeter(job)
    with meter.measuring(begin) as sample:   the step itself; mostly sample is None, and nothing was done
        ...
    meter.note(record, sample)
    record = meter.gathered(record)          collective, on logged steps only: with shares, and a row for each process

With `logging.time_breakdown` at 0 none of this does anything.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from statistics import median_low
from typing import TYPE_CHECKING

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from swift.contracts import RankFacts, StepTimes
from swift.processes.traces import CollectiveTrace, is_traced, length_within
from swift.processes.updates import UpdateTimes, listening
from swift.train.cadence import LoggedSteps

if TYPE_CHECKING:
    from swift.contracts import StepRecord
    from swift.train.job import Job

FIRST = 3
"""The step of a session that is measured first: those before it allocate, compile and fill caches."""
_cost = 0.005
"""The part of all time that reading traces may take: where it would take more, fewer steps are measured."""
SLOWER = 1.1
"""Times the median process's own time: who takes longer is slow."""
IN_A_ROW = 3
"""Measured steps in which a process must be the slowest to be named."""
MOST_ROWS = 64
"""Processes of which a record has rows; of more, those that take longest."""


@dataclass
class SampledStep:
    """One measured step of this process, in seconds."""

    seconds: float = 0.0
    communication: float = 0.0
    optimizer: float = 0.0
    cost: float = 0.0
    """Of beginning, ending and reading the trace."""


@dataclass
class _Row:
    """Sums over steps since the last logged one, as they travel between processes."""

    steps: float = 0.0
    seconds: float = 0.0
    data: float = 0.0
    memory: float = 0.0
    samples: float = 0.0
    sampled_seconds: float = 0.0
    sampled_communication: float = 0.0
    sampled_data: float = 0.0
    sampled_optimizer: float = 0.0
    cost: float = 0.0

    def add(self, record: StepRecord, sample: SampledStep | None) -> None:
        """Add a step."""
        self.steps += 1
        self.seconds += record.seconds
        self.data += record.data_seconds
        self.memory = max(self.memory, record.memory_gib)
        if sample is not None:
            self.samples += 1
            self.sampled_seconds += sample.seconds
            self.sampled_communication += sample.communication
            self.sampled_data += record.data_seconds
            self.sampled_optimizer += sample.optimizer
            self.cost += sample.cost

    @property
    def own(self) -> float:
        """Seconds of a measured step that were not spent in communication."""
        return (self.sampled_seconds - self.sampled_communication) / self.samples

    def values(self) -> list[float]:
        """Return the fields, in their order."""
        return [float(getattr(self, each.name)) for each in fields(self)]


@contextmanager
def measured_at_any_cost() -> Iterator[None]:
    """Measure every step that is due in the block, however much time it takes: for tests."""
    global _cost
    before, _cost = _cost, math.inf
    try:
        yield
    finally:
        _cost = before


class StepMeter:
    """Measures steps of this process, and gathers what all processes measured. All of them call it alike."""

    def __init__(self, job: Job) -> None:
        logging = job.run.config.logging
        self._job = job
        self._on = logging.time_breakdown > 0
        self._every = self._interval = logging.time_breakdown
        self._logged = LoggedSteps(logging.steps)
        self._affordable = self._every
        self._steps = 0
        self._last = min(logging.time_breakdown, FIRST) - logging.time_breakdown
        self._row = _Row()
        self._hosts: list[str] = []
        self._slow = _SlowProcess()

    @contextmanager
    def measuring(self, begin: float) -> Iterator[SampledStep | None]:
        """Measure the step in the block, if it is one to be measured. It began at `begin`, of `time.monotonic`."""
        self._steps += 1
        if not self._on or self._steps - self._last < self._interval or is_traced():
            yield None
            return
        self._last = self._steps
        sample = SampledStep()
        trace = CollectiveTrace(self._job.topology.device) if self._job.comms.distributed else None
        times = UpdateTimes(self._settle)
        with ExitStack() as stack:
            stack.enter_context(listening(times))
            if not self._job.hooks.capabilities.calls_before_update:
                hook = register_optimizer_step_pre_hook(lambda *_: times.begins(again=False))
                stack.callback(hook.remove)
            if trace is not None:
                sample.cost -= time.monotonic()
                trace.begin()
                stack.callback(trace.end)
                sample.cost += time.monotonic()
            since = time.time_ns()
            yield sample
            until, end = time.time_ns(), time.monotonic()
        sample.seconds = end - begin
        _add_times(sample, trace, times, (since, until))
        if trace is not None:
            sample.cost += time.monotonic() - end

    def note(self, record: StepRecord, sample: SampledStep | None) -> None:
        """Add a step to what the next logged one tells."""
        if self._on:
            self._row.add(record, sample)

    def gathered(self, record: StepRecord) -> StepRecord:
        """Return the record with what all processes measured, if the step is logged."""
        if not self._on or not self._logged.takes(record):
            return record
        rows = [_Row(*row) for row in self._job.comms.gather_numbers(self._row.values())]
        self._row = _Row()
        facts = self._facts(rows)
        slowest = self._slow.among(facts, round(max(row.samples for row in rows)))
        self._adapt(rows)
        return replace(
            record,
            time_breakdown=_mean_times(rows),
            ranks=sorted(facts, key=_longest)[:MOST_ROWS] if len(facts) > MOST_ROWS else facts,
            slowest=slowest,
        )

    def _settle(self) -> None:
        """Wait until the device has done what it was asked to do."""
        if self._job.topology.device.startswith("cuda"):
            torch.cuda.synchronize(self._job.topology.device)

    def _adapt(self, rows: Sequence[_Row]) -> None:
        """Measure less often where it costs too much, and as often as it may cost where a process seems to be slow.

        It is the same on every process, since all see the same rows.
        """
        samples = max(row.samples for row in rows)
        step = min(row.seconds / row.steps for row in rows)
        if samples and step:
            cost = max(row.cost for row in rows) / samples
            self._affordable = max(1, math.ceil(cost / (_cost * step)))
        self._interval = self._affordable if self._slow.is_suspected else max(self._every, self._affordable)

    def _facts(self, rows: Sequence[_Row]) -> list[RankFacts]:
        """Return what each process measured; nothing in a run of one."""
        if len(rows) == 1:
            return []
        self._hosts = self._hosts or self._job.comms.gather(socket.gethostname())
        return [
            RankFacts(
                rank=rank,
                host=self._hosts[rank],
                seconds=row.seconds / row.steps,
                data_seconds=row.data / row.steps,
                memory_gib=row.memory,
                own_seconds=row.own if row.samples else None,
                communication_seconds=row.sampled_communication / row.samples if row.samples else None,
            )
            for rank, row in enumerate(rows)
        ]


class _SlowProcess:
    """Tells which process holds the others up: the others wait for it in collectives, so own time alone names it."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._samples = 0

    @property
    def is_suspected(self) -> bool:
        """Return whether a process was slow in measured steps that are too few to name it."""
        return 0 < self._samples < IN_A_ROW

    def among(self, facts: Sequence[RankFacts], samples: int) -> RankFacts | None:
        """Return the process that has been slow in several measured steps in a row, these included."""
        if len(facts) > 1 and samples:
            self._look(facts, samples)
        return facts[self._rank] if self._rank is not None and self._samples >= IN_A_ROW and facts else None

    def _look(self, facts: Sequence[RankFacts], samples: int) -> None:
        own = [each.own_seconds or 0.0 for each in facts]
        slowest = max(range(len(own)), key=own.__getitem__)
        if own[slowest] <= SLOWER * median_low(own):
            self._rank, self._samples = None, 0
        elif slowest == self._rank:
            self._samples += samples
        else:
            self._rank, self._samples = slowest, samples


def _longest(facts: RankFacts) -> float:
    return -(facts.own_seconds if facts.own_seconds is not None else facts.seconds)


def _add_times(sample: SampledStep, trace: CollectiveTrace | None, times: UpdateTimes, step: tuple[int, int]) -> None:
    """Add communication and updates, in each of which the other does not count."""
    if trace is not None:
        sample.communication = length_within(trace.waits, *step) * 1e-9
    for begin, end in times.intervals:
        communicated = length_within(trace.waits, begin, end) if trace is not None else 0
        sample.optimizer += (end - begin - communicated) * 1e-9


def _mean_times(rows: Sequence[_Row]) -> StepTimes | None:
    """Return the means over processes and measured steps."""
    count = sum(row.samples for row in rows)
    if not count:
        return None
    return StepTimes(
        seconds=sum(row.sampled_seconds for row in rows) / count,
        communication=sum(row.sampled_communication for row in rows) / count,
        data=sum(row.sampled_data for row in rows) / count,
        optimizer=sum(row.sampled_optimizer for row in rows) / count,
    )
