"""A backend that shards, against the same engine used by hand and under Hugging Face's Trainer.

Speed by hand: swift and the loop take turns in the same two processes, step by step, on the same batches. The Trainer
runs by itself over the same chats, before or after swift. Memory is what a process takes beyond what it had before the
model was there; of all processes the one with the most counts.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import PACKED, PADDED, RUNS, SWIFT, TRAINING, Course, call, environment, swift_run, watch
from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, LARGE, MODEL, SOME_CHATS, WORK, take_chats
from benchmarks.turns import loss_difference, ratios, summary, turns

SAMPLES = 480
MEMORY_STEPS = 4
TRIMMED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""Has the C library give back at once what is free, so that what is seen is what is used."""
UNSAVED = ("--checkpoint.save_last", "false")
PHASES = {"rest": "weights and moments", "training": "peak in training", "loading": "peak while weights are read"}

Memory = dict[str, float]


@dataclass(frozen=True)
class Engine:
    """How to ask for an engine on either side."""

    name: str
    arguments: tuple[str, ...]
    """Of `swift sft`."""
    by_hand: str
    """Module of the loop, and the observer that lets it take turns."""
    observer: str
    said: str
    """The loop in words."""
    order: dict[str, Any] = field(default_factory=dict)
    """What loop and Trainer are told beyond model and chats."""


def speed(engine: Engine, quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Tokens per second, of two processes."""
    pair = (*engine.arguments, "--nproc", "2")
    in_turn = turns(f"{engine.name}-in-turn", 25 if quick else 105, *PADDED, *pair, observer=engine.observer)
    trainer = _against_trainer(engine, 96 if quick else SAMPLES, rounds=1 if quick else 2)
    figures = [
        Figure(f"2 processes: tokens/s over {engine.said}", median(ratios(in_turn)), at_least=0.97),
        Figure("2 processes: largest relative difference of the loss", loss_difference(in_turn), "", at_most=1e-5),
        Figure("2 processes, padded alike: tokens/s over the Trainer's", trainer["padded"], at_least=1.2),
        Figure("2 processes, packed: real tokens/s over the Trainer's", trainer["packed"]),
    ]
    return figures, {"in_turn": summary(in_turn), "against_trainer": trainer}


def memory(engine: Engine, ranks: Sequence[int]) -> tuple[list[Figure], dict[str, Any]]:
    """MiB per process, of an 84M-parameter model in fp32, beside what the loop by hand takes."""
    swift = {count: swift_memory(engine, count) for count in ranks}
    by_hand = {count: _memory_by_hand(engine, count) for count in ranks}
    figures = [
        Figure(
            f"{count} processes: peak in training over that of {engine.said}",
            swift[count]["training"] / by_hand[count]["training"],
            at_most=1.05,
        )
        for count in ranks
    ]
    figures += [
        Figure(f"{count} processes: {what} of each", swift[count][phase], "MiB")
        for phase, what in PHASES.items()
        for count in ranks
    ]
    whole = (LARGE / "model.safetensors").stat().st_size / 2**20
    figures.append(Figure("for comparison: the file of weights", whole, "MiB"))
    return figures, {"memory_mib": {"swift": swift, "by hand": by_hand}}


def swift_memory(engine: Engine, count: int, *more: str) -> Memory:
    """Of the process with the most."""
    place = (*engine.arguments, *more, "--nproc", str(count), "--max_steps", str(MEMORY_STEPS), *UNSAVED)
    return most(swift_run(_memory_run(engine, count), *PADDED, *place, **watched(LARGE)))


def most(folder: Path) -> Memory:
    """Of all processes, the most in each phase."""
    each = [json.loads(path.read_text())["mib"] for path in folder.glob("memory-*.json")]
    return {phase: max(memory[phase] for memory in each) for phase in each[0]}


def watched(model: Path = MODEL, data: Path = CHATS) -> dict[str, Any]:
    """What makes `swift_run` look at memory."""
    return {"observers": ["memory-of-each"], "model": model, "data": data, "variables": TRIMMED}


def _memory_run(engine: Engine, count: int) -> str:
    return f"{engine.name}-memory-{count}"


def _memory_by_hand(engine: Engine, count: int) -> Memory:
    """On the batches that swift's processes had."""
    folder = RUNS / LARGE.name / _memory_run(engine, count)
    batches = [json.loads((folder / f"memory-{rank}.json").read_text())["samples"] for rank in range(count)]
    own = _emptied(RUNS / f"{engine.name}-by-hand-{count}")
    order = {"model": str(LARGE), "chats": str(CHATS), "batches": batches}
    _torchrun(engine, engine.by_hand, count, order, own, **TRIMMED)
    return most(own)


def _against_trainer(engine: Engine, samples: int, rounds: int) -> dict[str, Any]:
    take_chats(samples)
    runs = [
        {
            "trainer": _trainer(engine),
            "padded": _swift(engine, "padded", PADDED),
            "packed": _swift(engine, "packed", PACKED),
        }
        for _ in range(rounds)
    ]
    found = {name: median(run[name].rate(1) / run["trainer"].rate(1) for run in runs) for name in ("padded", "packed")}
    return {**found, "steps": {name: len(course.steps) for name, course in runs[0].items()}}


def _trainer(engine: Engine) -> Course:
    folder = _emptied(RUNS / f"{engine.name}-trainer")
    _torchrun(engine, "benchmarks.trainer_loop", 2, {"model": str(MODEL), "chats": str(SOME_CHATS)}, folder)
    return Course(json.loads((folder / "trainer.json").read_text())["steps"])


def _swift(engine: Engine, name: str, arguments: tuple[str, ...]) -> Course:
    output = RUNS / f"{engine.name}-{name}"
    command = [SWIFT, "sft", "--model", str(MODEL), "--dataset", str(SOME_CHATS), *TRAINING, *engine.arguments]
    command += ["--nproc", "2", *arguments, "--num_train_epochs", "1", "--logging_steps", "1"]
    return watch([*command, "--output_dir", str(output)], environment(), output)


def _torchrun(engine: Engine, module: str, count: int, order: dict[str, Any], folder: Path, **variables: str) -> None:
    path = WORK / "order.json"
    path.write_text(json.dumps({"learning_rate": 1e-4, "folder": str(folder), **engine.order, **order}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    call([*command, "-m", module, str(path)], environment(**variables))


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
