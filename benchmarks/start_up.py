"""Compare the time from `swift sft` to the first step with a bare torch loop, phase by phase.

The bare loop imports torch and transformers, tokenizes, loads the model and makes a step. Both run alternately in
separate processes, on a few batches of chats; swift tokenizes each time. Under other load, compare CPU seconds instead
of wall-clock seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from functools import partial
from statistics import median
from typing import Any

from benchmarks.alternation import Rounds
from benchmarks.commands import PADDED, ROWS, RUNS, SWIFT, UNSAVED, call_module, environment, seconds_of, swift_run
from benchmarks.facts import Figure
from benchmarks.inputs import MODEL, SOME_CHATS, ensure, take_chats

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

MOST = 1.2
"""Times a bare script's start: what plugins, checks and the data set may cost."""
CHATS_OF_A_RUN = 8 * ROWS


Start = dict[str, Any]
"""Seconds and CPU seconds from the start of a process to the end of its first step."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    take_chats(CHATS_OF_A_RUN)
    _swift(), _bare()  # leave compiled modules behind
    rounds = 2 if quick else 5
    taken = Rounds({"swift": _swift, "bare": _bare}, rounds)
    phases = {phase: taken.median("swift", partial(_length, *ends)) for phase, ends in PHASES.items()}
    help_seconds = [seconds_of([SWIFT, "--help"], environment()) for _ in range(rounds)]
    over = "over a bare script's"
    figures = [
        Figure(f"CPU time to the first step {over}", taken.ratio("swift", "bare", "cpu"), at_most=MOST),
        Figure(f"time to the first step {over}", taken.ratio("swift", "bare", "seconds"), at_most=MOST),
        Figure("CPU time to the first step", taken.median("swift", "cpu"), unit="s"),
        Figure("time to the first step", taken.median("swift", "seconds"), unit="s"),
        *(Figure(f"- {phase}", seconds, unit="s") for phase, seconds in phases.items()),
        Figure("swift --help", median(help_seconds), unit="s", at_most=0.5),
    ]
    busy = f"{os.getloadavg()[0]:.0f} processes wanted to run when this was measured"
    note = f"On average {busy}: where that is more than there are cores, CPU time is the fair figure."
    return figures, {"starts": taken.taken, "phases": phases, "notes": [note]}


def _swift() -> Start:
    cache = RUNS / "start-up-cache"
    shutil.rmtree(cache, ignore_errors=True)
    start = time.time()
    arguments = (*PADDED, "--max_steps", "2", "--data.cache", str(cache), *UNSAVED)
    folder = swift_run("start-up", *arguments, observers=["stopwatch"], data=SOME_CHATS)
    watched = json.loads((folder / "stopwatch.json").read_text())
    marks = {"start": start, **watched["times"]}
    return {"seconds": marks["first_step.end"] - start, "cpu": watched["cpu"]["first_step.end"], "marks": marks}


def _length(begin: str | None, end: str, taken: Start) -> float:
    return float(taken["marks"][end] - taken["marks"][begin or "start"])


def _bare() -> Start:
    content = {"model": str(MODEL), "chats": str(SOME_CHATS), "learning_rate": 1e-4, "batches": [list(range(ROWS))]}
    start = time.time()
    printed = json.loads(call_module("benchmarks.bare_loop", content))
    return {"seconds": printed["first_step_at"] - start, "cpu": printed["first_step_cpu"]}
