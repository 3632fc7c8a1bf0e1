"""Checkpoints: swift's format against each engine's own, in turn, on the same state, at three sizes of a model.

One command per engine and size: a run of two steps, after which an observer saves in turn as swift does, as swift does
in the background, and as the engine does by itself. What each has put on disk for good when it says that it is done
differs, so that the engine's time is taken a second time with every file synced, as swift leaves them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.checkpoint_watch import CheckpointWatch
from benchmarks.commands import swift_run
from benchmarks.engines import UNSAVED
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

Found = list[dict[str, Any]]
"""Of each process."""


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    sizes, rounds = (dict(list(SIZES.items())[:1]), 1) if quick else (SIZES, ROUNDS)
    found = {engine: {size: _found(engine, model, rounds) for size, model in sizes.items()} for engine in ENGINES}
    figures = [
        figure(f"{engine}, {size}", each)
        for figure in FIGURES
        for engine, by_size in found.items()
        for size, each in by_size.items()
    ]
    figures += [
        figure
        for engine, by_size in found.items()
        for size, each in by_size.items()
        for figure in (*_memory(f"{engine}, {size}", each), *_load(f"{engine}, {size}", each))
    ]
    return figures, {"rounds": rounds, "found": found, "notes": NOTES}


def _found(engine: str, model: Path, rounds: int) -> Found:
    """What the observer noted on each process."""
    small = ("--per_device_train_batch_size", "2", "--max_steps", "2", *UNSAVED)
    folder = swift_run(
        f"checkpoints-{engine.replace(' ', '-')}",
        *small,
        *ENGINES[engine],
        observers=["checkpoint-watch"],
        model=model,
        variables={CheckpointWatch.ROUNDS: str(rounds)},
    )
    paths = sorted(folder.glob(CheckpointWatch.FILE.format("*")))
    return [json.loads(path.read_text()) for path in paths]


def _ratio(found: Found, over: str, under: str) -> float:
    """Return the median over rounds; all processes begin and end together, so that the first speaks for all."""
    return median(each[over] / each[under] for each in found[0]["rounds"])


def _against_native(what: str, found: Found) -> Figure:
    return Figure(f"{what}: save over the engine's own, synced", _ratio(found, "swift", "native, synced"), at_most=1.3)


def _against_native_as_it_is(what: str, found: Found) -> Figure:
    return Figure(f"{what}: save over the engine's own, as it is", _ratio(found, "swift", "native"))


def _stall(what: str, found: Found) -> Figure:
    stalls = (max(each["stall"] for each in ranks) / ranks[0]["swift"] for ranks in _by_round(found))
    return Figure(f"{what}: stall in the background over a synchronous save", median(stalls), at_most=0.1)


def _stall_of_the_processor(what: str, found: Found) -> Figure:
    seconds = median(max(each["stall, processor"] for each in ranks) for ranks in _by_round(found))
    synchronous = median(each["swift"] for each in found[0]["rounds"])
    return Figure(f"{what}: the stall's seconds of the processor over a synchronous save", seconds / synchronous)


def _by_round(found: Found) -> Iterator[tuple[dict[str, float], ...]]:
    return zip(*(each["rounds"] for each in found), strict=True)


def _first_stall(what: str, found: Found) -> Figure:
    synchronous = median(each["swift"] for each in found[0]["rounds"])
    return Figure(f"{what}: the first stall, into new memory", found[0]["first"]["stall"] / synchronous)


def _with_weights(what: str, found: Found) -> Figure:
    without = median(each["swift"] for each in found[0]["rounds"])
    return Figure(f"{what}: save with weights ready to load over one without", _weights(found)["swift"] / without)


def _stall_with(what: str, found: Found) -> Figure:
    own = _weights(found)
    return Figure(f"{what}: stall with weights ready to load over the save", own["stall"] / own["swift"], at_most=0.1)


def _weights(found: Found) -> dict[str, float]:
    weights: dict[str, float] = found[0]["with_model_weights"]
    return weights


def _memory(what: str, found: Found) -> list[Figure]:
    def most(phase: str) -> float:
        return max(each["memory"][phase] / each["memory"]["largest tensor"] for each in found)

    return [
        Figure(f"{what}: memory of a save, in largest tensors", most("swift"), "", at_most=2),
        Figure(f"{what}: the same with weights ready to load", most("with model weights"), "", at_most=2),
    ]


def _load(what: str, found: Found) -> list[Figure]:
    loads = [each["load"] for each in found]

    def most(value: Callable[[dict[str, float]], float]) -> float:
        return max(map(value, loads))

    return [
        Figure(f"{what}: bytes read over bytes held", most(lambda each: each["reading bytes"] / each["bytes held"])),
        Figure(
            f"{what}: share of the files that a process checks",
            most(lambda each: each["checking bytes"] / each["bytes of all files"]),
            "",
        ),
        Figure(
            f"{what}: checking over reading, in time",
            loads[0]["checking seconds"] / loads[0]["reading seconds"],
        ),
    ]


FIGURES = (
    _against_native,
    _against_native_as_it_is,
    _stall,
    _stall_of_the_processor,
    _first_stall,
    _with_weights,
    _stall_with,
)

NOTES: Sequence[str] = (
    "What is on disk for good when a save says that it is done. Swift: every file and folder. FSDP's and Megatron's "
    "own (torch.distributed.checkpoint, and dist_checkpointing in torch_dist): their files. torch.save and DeepSpeed's "
    "own: nothing. Synced means that every file of the engine's own was synced too before the clock was stopped.",
    "Both save weights, moments and step counts in fp32; what the engine keeps twice (ZeRO's working weights) its own "
    "format keeps twice. Weights ready to load are left out except where they are named.",
    "The stall is the time until training may go on, and that for which the next update waits for the copy, on the "
    "slowest process. The first one copies into memory that is new to the process; later ones into the same memory. "
    "By the clock it has in it that others on the machine had "
    "the processor meanwhile, which a save that waits for the disk has less of: the seconds of the processor, of the "
    "process with the most and of all its threads, are what is left on a machine that has nothing else to do.",
    "With weights ready to load there is one round, not a median, and it has in it what is done once in a run: finding "
    "out names and precisions of the model, its tokenizer. Its stall is compared with that longer save.",
    "Memory is that of the process with the most, above what it had before the save. Bytes are those that a process "
    "asked the kernel for.",
)
