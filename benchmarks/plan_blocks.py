"""What level 2 of `swift plan` says of a run from runs of two blocks and of four, against the run of all eight blocks.

The three runs of a cell are made one after the other, as `swift plan --level 2` types them, but forked from a process
that has imported what they need. Times are CPU seconds of all processes for a step, which neighbours on the machine
disturb least; of three steps the least counts. Memory is that of the process with the most, all of it, in training; the
C library gives back what is free. What was measured is kept in build/benchmarks/plan-blocks, so that a measurement that
was stopped goes on where it was; remove that folder to begin anew. Estimates are made each time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import TRAINING
from benchmarks.facts import Figure
from benchmarks.forked_runs import forked_runs
from benchmarks.inputs import MIDDLE, WORK, ensure
from benchmarks.plan_memory import IMPORTS, RECOMPUTED, TUNERS, WAYS, ninety_five
from swift_plan.measuring import BLOCKS, extrapolated
from swift_plan.trials import ShortRun, ShortRuns, watched_run
from swift_plan.watching import BEFORE, TRIAL

ENGINES = (
    *((way, 2) for way in ("torch", "fsdp", "zero2", "zero3", "megatron")),
    *((way, 1) for way in ("torch", "fsdp", "zero2", "megatron")),
)
"""Each of them as it is set up, and with how many processes."""
QUICK = ("torch", "fsdp")
LAYERS = 8
TEXTS, LENGTH = 2, 128
"""Rows of each process a step, and their tokens."""


@dataclass(frozen=True)
class Cell:
    """One run, and the same with fewer blocks."""

    way: str
    tuner: str
    recomputed: str
    processes: int

    @property
    def name(self) -> str:
        """Return it in words."""
        return f"{self.way}, {self.tuner}{self.recomputed}, {self.processes}"

    @property
    def file_name(self) -> str:
        """Return its name as files have it."""
        return self.name.replace(", ", "-").replace(" ", "")

    @property
    def flags(self) -> list[str]:
        """Return what is typed for it."""
        return [
            *WAYS[self.way], *TRAINING, *TUNERS[self.tuner], *RECOMPUTED[self.recomputed],
            "--per_device_train_batch_size", str(TEXTS), "--max_length", str(LENGTH),
            "--global_batch_size", str(TEXTS * self.processes),
        ]  # fmt: skip


def cells(quick: bool) -> Iterator[Cell]:
    """Yield the combinations, or a few of them."""
    for way, count in ENGINES:
        for tuner in ("full", "lora"):
            for recomputed in RECOMPUTED:
                if not quick or (way in QUICK and count == 2 and tuner == "full"):
                    yield Cell(way, tuner, recomputed, count)


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    failed: dict[str, str] = {}
    loads = [os.getloadavg()[0]]
    runs = measured(list(cells(quick)), failed)
    loads.append(os.getloadavg()[0])
    found = {name: _compared(each) for name, each in runs.items()}
    memory, beyond, cpu = ([abs(each[what]) for each in found.values()] for what in ("memory", "beyond", "cpu"))
    figures = [
        Figure("runs that were compared", len(found), ""),
        Figure("runs that failed", len(failed), "", at_most=0),
        Figure("peak: median of what is missed", 100 * median(memory), "%", at_most=2),
        Figure("peak: 95th percentile of what is missed", 100 * ninety_five(memory), "%", at_most=5),
        Figure("peak beyond what the program has without a model: median", 100 * median(beyond), "%"),
        Figure("peak beyond what the program has without a model: 95th percentile", 100 * ninety_five(beyond), "%"),
        Figure("CPU time of a step: median of what is missed", 100 * median(cpu), "%", at_most=8),
        Figure("CPU time of a step: 95th percentile of what is missed", 100 * ninety_five(cpu), "%"),
    ]
    for way in dict(ENGINES):
        errors = [each["memory"] for name, each in found.items() if name.startswith(f"{way},")]
        if errors:
            said = f"{len(errors)} runs of {way}, peak: lowest and highest error"
            figures += [
                Figure(f"{said} (low)", 100 * min(errors), "%"),
                Figure(f"{said} (high)", 100 * max(errors), "%"),
            ]
    note = (
        f"Before and after, {loads[0]:.1f} and {loads[1]:.1f} processes on average wanted the machine's "
        f"{os.cpu_count()} cores: beyond what is measured, those are neighbours, who make CPU time longer, too."
    )
    return figures, {"runs": found, "failed": failed, "notes": [note]}


def _compared(runs: Mapping[str, ShortRun]) -> dict[str, Any]:
    """Return how far what is said of a run is from what it took, as parts of that, and both in MiB and seconds."""
    whole = runs["all"]
    said = extrapolated({blocks: runs[str(blocks)] for blocks in BLOCKS}, LAYERS)
    program = whole.peaks[BEFORE]
    return {
        "memory": said.peak / whole.peak - 1,
        "beyond": (said.peak - program) / (whole.peak - program) - 1,
        "cpu": said.cpu_seconds / whole.cpu_seconds - 1,
        "said": {"cpu seconds": said.cpu_seconds, **_mebibytes(said)},
        "measured": {
            blocks: {"cpu seconds": run.cpu_seconds, "seconds": run.seconds, **_mebibytes(run)}
            for blocks, run in runs.items()
        },
    }


def _mebibytes(run: ShortRun) -> dict[str, float]:
    return {phase: round(size / 2**20, 1) for phase, size in run.peaks.items()}


def measured(wanted: Sequence[Cell], failed: dict[str, str]) -> dict[str, dict[str, ShortRun]]:
    """Return the runs by cell and number of blocks; what is not known yet is run."""
    (WORK / "plan-blocks").mkdir(parents=True, exist_ok=True)
    for engine, imports in IMPORTS.items():
        with ShortRuns.begun("sft", str(MIDDLE), []) as trials:
            places, runs = [], []
            for cell in wanted:
                for blocks in (*BLOCKS, None):
                    file = _file(cell, str(blocks or "all"))
                    if not cell.way.startswith(engine) or file.exists():
                        continue
                    words, output = trials.words(cell.flags, rows=TEXTS * cell.processes, length=LENGTH, blocks=blocks)
                    places.append((file, output))
                    runs.append((words, cell.processes))
            for (file, output), why in zip(
                places, forked_runs(runs, imports, {TRIAL: "1"}) if runs else (), strict=True
            ):
                seen = ShortRun(failure=why) if why else watched_run(output)
                shutil.rmtree(output, ignore_errors=True)
                if seen.failure:
                    failed[file.stem] = seen.failure[-500:]
                    print(f"  {file.stem} FAILED: {seen.failure}", flush=True)
                    continue
                file.write_text(json.dumps(asdict(seen)))
                print(f"  {file.stem}: {seen.cpu_seconds:.3f} s {seen.peaks}", flush=True)
    found = {cell.name: _kept(cell) for cell in wanted}
    return {name: runs for name, runs in found.items() if len(runs) == len(BLOCKS) + 1}


def _kept(cell: Cell) -> dict[str, ShortRun]:
    """Return the runs of a cell that are known, by their number of blocks."""
    names = {name: _file(cell, name) for name in (*map(str, BLOCKS), "all")}
    return {name: ShortRun(**json.loads(file.read_text())) for name, file in names.items() if file.exists()}


def _file(cell: Cell, blocks: str) -> Path:
    return WORK / "plan-blocks" / f"{cell.file_name}-{blocks}.json"
