"""What level 2 of `swift plan` says of a run from runs of one and of two blocks, against the run of all blocks.

The three runs of a cell are made one after the other, as `swift plan --level 2` types them, but forked from a process
that has imported what they need. Times are CPU seconds of all processes for a step, which neighbours on the machine
disturb least. What was measured is kept in build/benchmarks/plan-blocks, so that a measurement that was stopped goes on
where it was; remove that folder to begin anew. Estimates are made each time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.commands import TRAINING
from benchmarks.facts import Figure
from benchmarks.forked_runs import forked_runs
from benchmarks.inputs import MIDDLE, WORK, ensure
from benchmarks.plan_memory import IMPORTS, RECOMPUTED, TUNERS, WAYS
from swift_plan.trials import ShortRun, ShortRuns, watched_run
from swift_plan.watching import TRIAL

ENGINES = (
    *((way, 2) for way in ("torch", "fsdp", "zero2", "zero3", "megatron")),
    *((way, 1) for way in ("torch", "fsdp", "zero2", "megatron")),
)
"""Each of them as it is set up, and with how many processes."""
QUICK = ("torch", "fsdp")
BLOCKS = (1, 3, None)
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


def measured(wanted: Sequence[Cell], failed: dict[str, str]) -> dict[str, dict[str, ShortRun]]:
    """Return the runs by cell and number of blocks; what is not known yet is run."""
    folder = WORK / "plan-blocks"
    folder.mkdir(parents=True, exist_ok=True)
    for engine, imports in IMPORTS.items():
        with ShortRuns.begun("sft", str(MIDDLE), []) as trials:
            places, runs = [], []
            for cell in wanted:
                for blocks in BLOCKS:
                    file = folder / f"{cell.file_name}-{blocks or 'all'}.json"
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


if __name__ == "__main__":
    import sys

    ensure()
    found = list(cells("--quick" in sys.argv))
    for count in (2, 1): measured([c for c in found if c.processes == count], {})
