"""What `swift plan` counts of a run's memory, against what its processes are seen to take, on the CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import PADDED, swift_run
from benchmarks.engines import MEMORY_STEPS, UNSAVED, most, watched
from benchmarks.facts import Figure
from benchmarks.inputs import LARGE, ensure

WAYS = {
    "torch": ("--backend", "torch"),
    "fsdp": ("--backend", "fsdp"),
    "zero1": ("--deepspeed", "zero1"),
    "zero2": ("--deepspeed", "zero2"),
    "zero3": ("--deepspeed", "zero3"),
    "megatron": ("--backend", "megatron"),
    "megatron tp 2": ("--backend", "megatron", "--tp", "2"),
    "megatron pp 2": ("--backend", "megatron", "--pp", "2"),
}
TUNERS = {"full": ("--train_type", "full"), "lora": ("--train_type", "lora")}
RECOMPUTED = {"": (), ", recomputed": ("--gradient_checkpointing", "true")}
_NOT_OF_THE_MODEL = "Python, torch and transformers"
"""The term of a plan on the CPU that is there before there is a model."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    name: str
    processes: int
    flags: tuple[str, ...]


def cells(quick: bool) -> Iterator[Cell]:
    """Yield all combinations that there are, or a few of them."""
    for way, flags in WAYS.items():
        for count in (2,) if quick else (1, 2, 4):
            if way.endswith("2") and count == 1 and not way.startswith("zero"):
                continue
            for tuner, tuned in TUNERS.items():
                for recomputed, switched in RECOMPUTED.items():
                    if quick and (tuner, recomputed) not in (("full", ""), ("lora", ", recomputed")):
                        continue
                    yield Cell(f"{way}, {tuner}{recomputed}, {count}", count, (*flags, *tuned, *switched))


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    found = {cell.name: _compared(cell) for cell in cells(quick)}
    errors = sorted(abs(each["peak_error"]) for each in found.values())
    states = sorted(abs(each["states_error"]) for each in found.values() if each["states_mib"] > 200)
    ninety_five = errors[min(len(errors) - 1, int(0.95 * len(errors)))]
    figures = [
        Figure("runs that were compared", len(errors), ""),
        Figure("peak in training: median of what is missed", 100 * median(errors), "%", at_most=3.0),
        Figure("peak in training: 95th percentile of what is missed", 100 * ninety_five, "%", at_most=8.0),
        Figure("weights and moments: median of what is missed", 100 * median(states), "%", at_most=1.5),
    ]
    return figures, {"runs": found}


def _compared(cell: Cell) -> dict[str, float]:
    """Run one cell; MiB of the process with the most, beside what was counted."""
    place = (*cell.flags, "--nproc", str(cell.processes), "--max_steps", str(MEMORY_STEPS), *UNSAVED)
    look = watched(LARGE)
    look["observers"] = [*look["observers"], "plan"]
    folder = swift_run(f"plan-{cell.name.replace(', ', '-').replace(' ', '')}", *PADDED, *place, **look)
    measured = most(folder)
    counted = _counted(folder)
    states = sum(counted.get(name, 0.0) for name in ("weights", "fp32 weights", "optimizer"))
    peak = sum(counted.values())
    return {
        "peak_mib": measured["training"],
        "counted_peak_mib": peak,
        "peak_error": peak / measured["training"] - 1,
        "states_mib": measured["rest"],
        "counted_states_mib": states,
        "states_error": states / measured["rest"] - 1 if measured["rest"] else 0.0,
    }


def _counted(folder: Path) -> dict[str, float]:
    plan = json.loads((folder / "plan.json").read_text())
    terms = plan["predicted"]["memory_bytes"]
    return {name: size / 2**20 for name, size in terms.items() if name != _NOT_OF_THE_MODEL}
