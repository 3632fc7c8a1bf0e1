"""Checkpoints: swift's format against each engine's own, in turn, on the same state, at three sizes of a model.

One command per engine and size: a run of two steps, after which an observer saves in turn as swift does, as swift does
in the background, and as the engine does by itself. What each has put on disk for good when it says that it is done
differs, so that the engine's time is taken a second time with every file synced, as swift leaves them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import UNSAVED, swift_run
from benchmarks.facts import Figure
from benchmarks.inputs import LARGE, MIDDLE, MODEL, ensure

ENGINES = {
    "torch": ("--backend", "torch"),
    "fsdp 2": ("--backend", "fsdp", "--nproc", "2"),
    "zero3 2": ("--deepspeed", "zero3", "--nproc", "2"),
    "zero2 2": ("--deepspeed", "zero2", "--nproc", "2"),
    "megatron tp 2": ("--backend", "megatron", "--tp", "2", "--nproc", "2"),
}
SIZES = {"5M": MODEL, "28M": MIDDLE, "84M": LARGE}
ROUNDS = 3
ROUNDS_VARIABLE = "SWIFT_BENCHMARK_ROUNDS"
"""Tells the observer how many."""

Found = list[dict[str, Any]]
"""Of each process."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    sizes, rounds = (dict(list(SIZES.items())[:1]), 1) if quick else (SIZES, ROUNDS)
    found = {engine: {size: _found(engine, model, rounds) for size, model in sizes.items()} for engine in ENGINES}
    by_name = {f"{engine}, {size}": _ratios(each) for engine, own in found.items() for size, each in own.items()}
    figures = [
        Figure(f"{name}: {what}", ratios[what], unit, at_most=goal)
        for what, (unit, goal) in FIGURES.items()
        for name, ratios in by_name.items()
    ]
    return figures, {"rounds": rounds, "found": found, "notes": NOTES}


def _found(engine: str, model: Path, rounds: int) -> Found:
    """What the observer noted on each process."""
    folder = swift_run(
        f"checkpoints-{engine.replace(' ', '-')}", "--per_device_train_batch_size", "2", "--max_steps", "2", *UNSAVED,
        *ENGINES[engine], observers=["checkpoint-watch"], model=model, variables={ROUNDS_VARIABLE: str(rounds)},
    )  # fmt: skip
    return [json.loads(path.read_text()) for path in sorted(folder.glob("checkpoints-*.json"))]


def _ratios(found: Found) -> dict[str, float]:
    """Return the figures of a run; all processes begin and end together, so that the first speaks for all."""
    first, weights = found[0]["rounds"], found[0]["with_model_weights"]
    synchronous = median(each["swift"] for each in first)
    stalls = [max(each["stall"] for each in ranks) for ranks in zip(*(each["rounds"] for each in found), strict=True)]
    memory = {name: max(each["memory"][name] / each["memory"]["largest tensor"] for each in found) for name in SAVES}
    loads = [each["load"] for each in found]
    values = (
        median(each["swift"] / each["native, synced"] for each in first),
        median(each["swift"] / each["native"] for each in first),
        median(stall / each["swift"] for stall, each in zip(stalls, first, strict=True)),
        weights["swift"] / synchronous,
        weights["stall"] / weights["swift"],
        *memory.values(),
        max(each["reading bytes"] / each["bytes held"] for each in loads),
        max(each["checking bytes"] / each["bytes of all files"] for each in loads),
    )
    return dict(zip(FIGURES, values, strict=True))


SAVES = ("swift", "with model weights")
FIGURES: dict[str, tuple[str, float | None]] = {
    "save over the engine's own, synced": ("x", 1.3),
    "save over the engine's own, as it is": ("x", None),
    "stall in the background over a synchronous save": ("x", 0.1),
    "save with weights ready to load over one without": ("x", None),
    "stall with weights ready to load over the save": ("x", 0.1),
    "memory of a save, in largest tensors": ("", 2),
    "the same with weights ready to load": ("", 2),
    "bytes read over bytes held": ("x", None),
    "share of the files that a process checks": ("", None),
}
"""Titles, with unit and goal."""
NOTES: Sequence[str] = (
    "What is on disk for good when a save says that it is done. Swift: every file and folder. FSDP's and Megatron's "
    "own (torch.distributed.checkpoint, and dist_checkpointing in torch_dist): their files. torch.save and DeepSpeed's "
    "own: nothing. Synced means that every file of the engine's own was synced too before the clock was stopped.",
    "Both save weights, moments and step counts in fp32; what the engine keeps twice (ZeRO's working weights) its own "
    "format keeps twice. Weights ready to load are left out except where they are named.",
    "The stall is the time until training may go on, and that for which the next update waits for the copy, on the "
    "slowest process. It has in it that other programs had the processor meanwhile, which a save that waits for the "
    "disk has less of.",
    "With weights ready to load there is one round, not a median, and it has in it what is done once in a run: finding "
    "out names and precisions of the model, its tokenizer. Its stall is compared with that longer save.",
    "Memory is that of the process with the most, above what it had before the save. Bytes are those that a process "
    "asked the kernel for.",
)
