"""Levels 2 and 4 of a plan: what blocks of a model, or whole runs of a few steps, took on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from swift_plan import ledger
from swift_plan.cluster import Cluster
from swift_plan.fit import MeasuredStep, fit
from swift_plan.machine import PROGRAM
from swift_plan.screen import flags, gib, label, seconds
from swift_plan.search import Candidate
from swift_plan.trials import ShortRun, ShortRuns
from swift_plan.watching import TRAINING
from swift_plan.workload import Workload


@dataclass(frozen=True)
class MeasuredRun:
    """A run whose plans are to be measured: its flags without those of plans, and where it is to be."""

    command: str
    model: str
    args: Sequence[str]
    workload: Workload
    cluster: Cluster
    layers: int


@dataclass(frozen=True)
class MeasuredPlan:
    """A plan with what was measured of it, or what ended its run."""

    plan: Candidate
    trial: ShortRun

    def row(self) -> list[str]:
        """Return it for the table: predicted and measured."""
        predicted = [seconds(self.plan.time.total), gib(self.plan.peak)]
        if self.trial.failure:
            return [label(self.plan), predicted[0], self.trial.failure, predicted[1], ""]
        return [label(self.plan), predicted[0], seconds(self.trial.seconds), predicted[1], gib(self.trial.peak)]

    def as_json(self) -> Mapping[str, Any]:
        """Return it for programs."""
        found = {"failure": self.trial.failure} if self.trial.failure else {
            "step_seconds": self.trial.seconds, "peak_bytes": round(self.trial.peak),
        }  # fmt: skip
        return {"plan": label(self.plan), "basis": "measured", **found}


BLOCKS = (2, 4)
"""Of a model, as they are run for level 2. One block alone is not like one of many, where the next one's weights are
gathered while it computes; and of four, an error of what a block adds counts for half of what it does of three.
"""
HEADING = ["plan", "step planned", "measured", "peak planned", "measured"]


def measured(
    run: MeasuredRun, plans: Sequence[Candidate], report: Callable[[str], None], *, by_blocks: bool = False
) -> list[MeasuredPlan]:
    """Run plans for a few steps each; return them fastest first, those that failed at the end.

    With `by_blocks` run few blocks under each plan, and return what all blocks would take. Such plans have no
    pipelines, as one block has no two stages.
    """
    found = []
    with ShortRuns.begun(run.command, run.model, run.args) as trials:
        for plan in plans:
            trial = _of_blocks(run, plan, trials) if by_blocks else _trial(run, plan, trials)
            # What the program itself takes is measured with it.
            found.append(MeasuredPlan(replace(plan, program=PROGRAM * 1e9) if run.workload.on_cpu else plan, trial))
            report(f"{label(plan)}: {trial.failure or f'{seconds(trial.seconds)} a step, {gib(trial.peak)}'}")
    return sorted(found, key=lambda each: (bool(each.trial.failure), each.trial.seconds))


def _of_blocks(run: MeasuredRun, plan: Candidate, trials: ShortRuns) -> ShortRun:
    each: dict[int, ShortRun] = {}
    for blocks in sorted({min(blocks, run.layers) for blocks in BLOCKS}):
        each[blocks] = _trial(run, plan, trials, blocks)
        if each[blocks].failure:
            break
    return extrapolated(each, run.layers)


def extrapolated(runs: Mapping[int, ShortRun], layers: int) -> ShortRun:
    """Return what so many layers take, from runs by their number of blocks; the failure where one failed.

    Each phase has a peak that is linear in the number, and the largest of them counts: which one that is may differ
    between few blocks and many.
    """
    for run in runs.values():
        if run.failure:
            return run
    few, many = min(runs), max(runs)
    less, more = runs[few], runs[many]

    def all_of(before: float, after: float) -> float:
        return after + (layers - many) * max(0.0, after - before) / max(1, many - few)

    peaks = {phase: all_of(less.peaks[phase], size) for phase, size in more.peaks.items()}
    return ShortRun(
        seconds=all_of(less.seconds, more.seconds),
        cpu_seconds=all_of(less.cpu_seconds, more.cpu_seconds),
        peaks=peaks,
        peak=max(peaks.get(phase, 0.0) for phase in TRAINING),
    )


def keep(found: Sequence[MeasuredPlan], device: str) -> None:
    """Fit this machine's speeds to what was measured, and keep them for plans to come."""
    rows = [
        MeasuredStep(each.plan.predict, each.trial.seconds, label(each.plan))
        for each in found
        if not each.trial.failure
    ]
    if rows:
        start, before = ledger.known_speeds(device)
        ledger.keep_speeds(device, fit(rows, start), before + len(rows))


def _trial(run: MeasuredRun, plan: Candidate, trials: ShortRuns, blocks: int | None = None) -> ShortRun:
    typed = flags(plan, run.args, run.workload)
    if run.cluster.per_machine > 1:
        typed += ["--nproc", str(run.cluster.per_machine)]
    return trials.run(typed, rows=run.workload.rows, length=run.workload.length, blocks=blocks)
