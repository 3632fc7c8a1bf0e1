"""Exports: merging adapters into a model folder, against `cp` of the same bytes and against PEFT, at three sizes.

Each side is a process that does its work twice and measures the second time. Comparing the export with the training
state is left out of the ratios and shown apart.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import RUNS, SWIFT, call, environment
from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, HUGE, LARGE, MIDDLE, WORK, ensure, ensure_huge

SIZES = {"28M": MIDDLE, "84M": LARGE, "447M": HUGE}
ROUNDS = 3
LORA = ("--train_type", "lora", "--max_steps", "1", "--per_device_train_batch_size", "1", "--save_steps", "1")
"""An adapter like any other: what it has learned does not matter here."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure() if quick else ensure_huge()
    sizes, rounds = (dict(list(SIZES.items())[:1]), 1) if quick else (SIZES, ROUNDS)
    found = {size: _found(size, model, rounds) for size, model in sizes.items()}
    figures = []
    for size, sides in found.items():

        def ratio(over: str, under: str, what: str, of: dict[str, list[dict[str, float]]] = sides) -> float:
            return median(a[what] / b[what] for a, b in zip(of[over], of[under], strict=True))

        figures += [
            Figure(f"{size}: export over cp of the same bytes, synced", ratio("swift", "cp", "seconds"), at_most=1.5),
            Figure(f"{size}: export over PEFT's, synced", ratio("swift", "peft", "seconds"), at_most=1.0),
            Figure(f"{size}: memory of the export over PEFT's", ratio("swift", "peft", "mib"), at_most=0.5),
            Figure(f"{size}: export with its comparison over without", ratio("verified", "swift", "seconds")),
        ]
    return figures, {"rounds": rounds, "found": found}


def _found(size: str, model: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    place = ("--output_dir", str(RUNS), "--logging.run_name", f"export-{size}", "--report_to", "jsonl")
    shutil.rmtree(RUNS / model.name / f"export-{size}", ignore_errors=True)
    call([SWIFT, "sft", "--model", str(model), "--dataset", str(CHATS), *LORA, *place], environment())
    checkpoint = (RUNS / model.name / f"export-{size}" / "last-checkpoint").resolve()
    sides: dict[str, list[dict[str, float]]] = {"cp": [], "swift": [], "verified": [], "peft": []}
    for _ in range(rounds):
        for side, answers in sides.items():
            command = [sys.executable, "-m", "benchmarks.export_sides", side, str(checkpoint), str(WORK / "exported")]
            answers.append(json.loads(call(command, environment()).strip().splitlines()[-1]))
    return sides
