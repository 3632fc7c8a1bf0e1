"""From typing `swift sft` to the first step, phase by phase, against a bare torch loop that does the same.

The bare loop imports torch and transformers, tokenises, loads the model and makes a step: nobody can be much faster
who uses these libraries. Both run in turn, each in a process of its own; swift tokenises anew every time.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from statistics import median
from typing import Any

from benchmarks.commands import PADDED, ROWS, RUNS, SWIFT, call, environment, seconds_of, swift_run
from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, MODEL, WORK, ensure

PHASES = {
    "command line, imports of torch, plugins": (None, "setup.begin"),
    "processes": ("setup.begin", "setup.end"),
    "tokenizer and data": ("setup.end", "wrap_model.begin"),
    "model": ("wrap_model.begin", "wrap_model.end"),
    "optimizer": ("wrap_model.end", "shard.end"),
    "run folder, observers, first batch": ("shard.end", "first_step.begin"),
    "first step": ("first_step.begin", "first_step.end"),
}
"""Phase → the stopwatch's marks at its begin and end; None is the start of the command."""

Marks = dict[str, float]


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    _swift(), _bare()  # leave compiled modules behind
    rounds = 2 if quick else 5
    pairs = [(_swift(), _bare()) for _ in range(rounds)]
    totals = [(marks["first_step.end"] - marks["start"], bare) for marks, bare in pairs]
    phases = {phase: median(_length(marks, *ends) for marks, _ in pairs) for phase, ends in PHASES.items()}
    help_seconds = [seconds_of([SWIFT, "--help"], environment()) for _ in range(rounds)]
    figures = [
        Figure("time to the first step over a bare loop's", median(ours / bare for ours, bare in totals)),
        Figure("time to the first step", median(ours for ours, _ in totals), unit="s"),
        *(Figure(f"- {phase}", seconds, unit="s") for phase, seconds in phases.items()),
        Figure("swift --help", median(help_seconds), unit="s", at_most=0.5),
    ]
    return figures, {"seconds": [{"swift": ours, "bare": bare} for ours, bare in totals], "phases": phases}


def _swift() -> Marks:
    cache = RUNS / "start-up-cache"
    shutil.rmtree(cache, ignore_errors=True)
    start = time.time()
    arguments = (*PADDED, "--max_steps", "2", "--data.cache", str(cache), "--checkpoint.save_last", "false")
    folder = swift_run("start-up", *arguments, observers=["stopwatch"])
    marks: Marks = json.loads((folder / "stopwatch.json").read_text())["times"]
    return {"start": start, **marks}


def _length(marks: Marks, begin: str | None, end: str) -> float:
    return marks[end] - marks[begin or "start"]


def _bare() -> float:
    order = WORK / "order-of-one.json"
    content = {"model": str(MODEL), "chats": str(CHATS), "learning_rate": 1e-4, "batches": [list(range(ROWS))]}
    order.write_text(json.dumps(content))
    start = time.time()
    printed = call([sys.executable, "-m", "benchmarks.bare_loop", str(order)], environment())
    return float(json.loads(printed)["first_step_at"]) - start
