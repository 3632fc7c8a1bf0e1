"""Compare speed and peak memory of training with a bare torch loop.

Speed: both alternate step by step within one process, and `swift sft` has its usual observers. Padded, both train on
the same batches, and their losses are compared. Packed, a row of swift has as many tokens as a padded batch on average,
and only real tokens count. Memory: each in a separate process, on the same batches.
"""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from benchmarks.alternation import loss_difference, ratios, summary, turns
from benchmarks.commands import PACKED, PADDED, TRAINING, call_module, swift_run
from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, MODEL, ensure

MEMORY_STEPS = 20


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    steps = 25 if quick else 105
    padded = turns("padded", steps, *PADDED)
    packed = turns("packed", steps, *PACKED)
    batches = [turn["samples"] for turn in padded[:MEMORY_STEPS]]
    memory = {"swift": _swift_memory(), "bare": _bare_memory(batches)}
    figures = [
        Figure("padded: tokens/s over the bare loop's", median(ratios(padded)), at_least=0.95),
        Figure("packed: real tokens/s over the bare padded loop's", median(ratios(packed)), at_least=1.8),
        Figure("padded: peak memory over the bare loop's", memory["swift"] / memory["bare"], at_most=1.15),
        Figure("padded: largest relative difference of the loss", loss_difference(padded), unit="", at_most=1e-5),
    ]
    details = {
        "arguments": {"both": TRAINING, "padded": PADDED, "packed": PACKED},
        "steps": steps,
        "padded": summary(padded),
        "packed": summary(packed),
        "peak_mib": memory,
    }
    return figures, details


def _swift_memory() -> float:
    folder = swift_run("memory", *PADDED, "--max_steps", str(MEMORY_STEPS), observers=["stopwatch"])
    return float(json.loads((folder / "stopwatch.json").read_text())["peak_mib"])


def _bare_memory(batches: list[list[int]]) -> float:
    order = {"model": str(MODEL), "chats": str(CHATS), "learning_rate": 1e-4, "batches": batches}
    return float(json.loads(call_module("benchmarks.bare_loop", order))["peak_mib"])
