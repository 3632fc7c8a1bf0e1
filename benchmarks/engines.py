"""Compare a sharding backend with the same engine in a hand-written loop and in Hugging Face's Trainer.

Speed: swift and the loop alternate step by step in the same two processes, on the same batches. The Trainer runs alone
on the same chats, before or after swift. Memory: the increase of a process since before it built the model, in the
process with the largest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alternation import Rounds, figures_in_turn, summary, turns
from benchmarks.commands import (
    PACKED,
    PADDED,
    RUNS,
    SWIFT,
    TRAINING,
    UNSAVED,
    Course,
    call_module,
    environment,
    swift_run,
    watch,
)
from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, LARGE, LONG, LONGEST, MODEL, SOME_CHATS, WORK, ensure, take_chats

SAMPLES = 480
MEMORY_STEPS = 4
TRIMMED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""Has the C library give back at once what is free, so that what is seen is what is used."""
PHASES = {"rest": "weights and moments", "training": "peak in training", "loading": "peak while weights are read"}
RANKS = (1, 2, 4)
STAGES = ("zero0", "zero1", "zero2", "zero3")
JSON = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
}
JSON_FILE = WORK / "ds_config.json"

Memory = dict[str, float]


@dataclass(frozen=True)
class Engine:
    """How to select an engine on either side."""

    name: str
    arguments: tuple[str, ...]
    by_hand: str = ""
    order: dict[str, Any] = field(default_factory=dict)
    """What loop and Trainer get beyond model and chats."""


FSDP = Engine("fsdp", ("--backend", "fsdp"), "FSDP2 by hand")
ZERO = Engine("deepspeed", ("--deepspeed", str(JSON_FILE)), "DeepSpeed by hand", {"deepspeed": JSON})


def fsdp(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Speed against FSDP2 by hand and the Trainer's, memory by processes, and long samples."""
    ensure()
    ranks = RANKS[:2] if quick else RANKS
    of_speed, speed_details = _speed(FSDP, quick)
    of_memory, memory_details = _memory(FSDP, ranks)
    long = {name: {count: _long(name, count) for count in ranks} for name in ("ulysses", "cp")}
    of_long = [
        Figure(f"{LONGEST} tokens, {name} {count}: peak of each over one process's", peaks[count] / peaks[1])
        for name, peaks in long.items()
        for count in ranks[1:]
    ]
    return [*of_speed, *of_memory, *of_long], {**speed_details, **memory_details, "long_sequence_mib": long}


def deepspeed(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Speed against `deepspeed.initialize` by hand and the Trainer's, and memory by stage."""
    ensure()
    JSON_FILE.write_text(json.dumps(JSON))
    of_speed, speed_details = _speed(ZERO, quick)
    of_memory, memory_details = _memory(ZERO, (2,))
    counts = (2,) if quick else RANKS
    stages = {
        stage: {count: _swift_memory(Engine(stage, ("--deepspeed", stage)), count) for count in counts}
        for stage in STAGES
    }
    of_stages = [
        Figure(f"{stage}, {count} processes: weights and moments of each", found["rest"], "MiB")
        for stage, by_count in stages.items()
        for count, found in by_count.items()
    ]
    return [*of_speed, *of_memory, *of_stages], {**speed_details, **memory_details, "stages_mib": stages}


def _speed(engine: Engine, quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    in_turn = turns(f"{engine.name}-in-turn", 25 if quick else 105, *PADDED, *engine.arguments, "--nproc", "2")
    trainer = _against_trainer(engine, 96 if quick else SAMPLES, rounds=1 if quick else 2)
    figures = [
        *figures_in_turn("2 processes", engine.by_hand, in_turn, at_least=0.97),
        Figure("2 processes, padded alike: tokens/s over the Trainer's", trainer["padded"], at_least=1.2),
        Figure("2 processes, packed: real tokens/s over the Trainer's", trainer["packed"]),
    ]
    return figures, {"in_turn": summary(in_turn), "against_trainer": trainer}


def _memory(engine: Engine, ranks: Sequence[int]) -> tuple[list[Figure], dict[str, Any]]:
    """MiB per process, of an 84M-parameter model in fp32, compared with what the loop by hand takes."""
    swift = {count: _swift_memory(engine, count) for count in ranks}
    by_hand = {count: _memory_by_hand(engine, count) for count in ranks}
    figures = [
        Figure(
            f"{count} processes: peak in training over that of {engine.by_hand}",
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


def _long(name: str, count: int) -> float:
    """Peak in training on one sample of as many tokens as the model has positions for, cut over the processes."""
    cut = (f"--parallel.{name}", str(count)) if count > 1 else ()
    argv = ("--per_device_train_batch_size", "1", "--max_length", str(LONGEST), *FSDP.arguments, *cut)
    return _watched_run(f"{name}-{count}", count, 3, *argv, model=MODEL, data=LONG)["training"]


def _swift_memory(engine: Engine, count: int) -> Memory:
    return _watched_run(_memory_run(engine, count), count, MEMORY_STEPS, *PADDED, *engine.arguments, model=LARGE)


def _watched_run(name: str, count: int, steps: int, *argv: str, **inputs: Any) -> Memory:
    """Train in so many processes, and return the memory of the process with the most."""
    argv = (*argv, "--nproc", str(count), "--max_steps", str(steps), *UNSAVED)
    return most(swift_run(name, *argv, observers=["memory-of-each"], variables=TRIMMED, **inputs))


def most(folder: Path) -> Memory:
    """Return the most of all processes in each phase."""
    each = [json.loads(path.read_text())["mib"] for path in folder.glob("memory-*.json")]
    return {phase: max(memory[phase] for memory in each) for phase in each[0]}


def _memory_run(engine: Engine, count: int) -> str:
    return f"{engine.name}-memory-{count}"


def _memory_by_hand(engine: Engine, count: int) -> Memory:
    folder = RUNS / LARGE.name / _memory_run(engine, count)
    batches = [json.loads((folder / f"memory-{rank}.json").read_text())["samples"] for rank in range(count)]
    own = _emptied(RUNS / f"{engine.name}-by-hand-{count}")
    order = {"model": str(LARGE), "chats": str(CHATS), "batches": batches}
    _torchrun(engine, "benchmarks.sharded_loop", count, order, own, **TRIMMED)
    return most(own)


def _against_trainer(engine: Engine, samples: int, rounds: int) -> dict[str, Any]:
    take_chats(samples)
    padded, packed = (partial(_swift, engine, *each) for each in (("padded", PADDED), ("packed", PACKED)))
    runs = Rounds({"trainer": partial(_trainer, engine), "padded": padded, "packed": packed}, rounds)
    found = {name: runs.ratio(name, "trainer", lambda course: course.rate(1)) for name in ("padded", "packed")}
    return {**found, "steps": {name: len(course.steps) for name, course in runs.taken[0].items()}}


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
    whole = {"learning_rate": 1e-4, "folder": str(folder), **engine.order, **order}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count))
    call_module(module, whole, *launcher, **variables)


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
