"""The FSDP backend: speed against FSDP2 by hand and the Trainer's, and memory by the number of processes.

Speed by hand: swift and the loop take turns in the same two processes, step by step, on the same batches. The Trainer
runs by itself over the same chats, before or after swift. Memory is what a process takes beyond what it had before the
model was there; of all processes the one with the most counts.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import PACKED, PADDED, RUNS, SWIFT, TRAINING, Course, call, environment, swift_run, watch
from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, LARGE, LONG, LONGEST, MODEL, SOME_CHATS, WORK, ensure, take_chats
from benchmarks.turns import loss_difference, ratios, summary, turns

RANKS = (1, 2, 4)
BACKEND = ("--backend", "fsdp")
PAIR = (*BACKEND, "--nproc", "2")
SAMPLES = 480
MEMORY_STEPS = 4
RATE = "1e-4"

PHASES = {"rest": "weights and moments", "training": "peak in training", "loading": "peak while weights are read"}

Memory = dict[str, float]


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    steps = 25 if quick else 105
    in_turn = turns("fsdp-in-turn", steps, *PADDED, *PAIR, observer="sharded-loop-in-turn")
    against_trainer = _against_trainer(96 if quick else SAMPLES, rounds=1 if quick else 3)
    ranks = RANKS[:2] if quick else RANKS
    swift, by_hand = _memory(ranks)
    long = {name: _long(name, ranks) for name in ("ulysses", "cp")}
    whole = (LARGE / "model.safetensors").stat().st_size / 2**20
    figures = [
        Figure("2 processes: tokens/s over FSDP2 by hand", median(ratios(in_turn)), at_least=0.97),
        Figure("2 processes: largest relative difference of the loss", loss_difference(in_turn), "", at_most=1e-5),
        Figure("2 processes, padded alike: tokens/s over the Trainer's", against_trainer["padded"], at_least=1.2),
        Figure("2 processes, packed: real tokens/s over the Trainer's", against_trainer["packed"]),
        *(
            Figure(
                f"{count} processes: peak in training over FSDP2 by hand's",
                swift[count]["training"] / by_hand[count]["training"],
                at_most=1.05,
            )
            for count in ranks
        ),
        *(
            Figure(f"{count} processes: {what} of each", swift[count][phase], "MiB")
            for phase, what in PHASES.items()
            for count in ranks
        ),
        Figure("for comparison: the file of weights", whole, "MiB"),
        *(
            Figure(f"{LONGEST} tokens, {name} {count}: peak of each over one process's", peaks[count] / peaks[1])
            for name, peaks in long.items()
            for count in ranks[1:]
        ),
    ]
    details = {
        "in_turn": summary(in_turn),
        "against_trainer": against_trainer,
        "memory_mib": {"swift": swift, "by hand": by_hand},
        "long_sequence_mib": long,
    }
    return figures, details


def _against_trainer(samples: int, rounds: int) -> dict[str, Any]:
    take_chats(samples)
    runs = [
        {
            "trainer": _trainer(),
            "padded": _swift("padded", PADDED),
            "packed": _swift("packed", PACKED),
        }
        for _ in range(rounds)
    ]
    found = {name: median(run[name].rate(1) / run["trainer"].rate(1) for run in runs) for name in ("padded", "packed")}
    return {**found, "steps": {name: len(course.steps) for name, course in runs[0].items()}}


def _trainer() -> Course:
    folder = _emptied(RUNS / "trainer")
    _torchrun("benchmarks.trainer_loop", 2, {"chats": str(SOME_CHATS), "folder": str(folder)})
    return Course(json.loads((folder / "trainer.json").read_text())["steps"])


def _swift(name: str, arguments: tuple[str, ...]) -> Course:
    output = RUNS / f"fsdp-{name}"
    command = [SWIFT, "sft", "--model", str(MODEL), "--dataset", str(SOME_CHATS), *TRAINING, *PAIR, *arguments]
    command += ["--num_train_epochs", "1", "--logging_steps", "1", "--output_dir", str(output)]
    return watch(command, environment(), output)


def _memory(ranks: tuple[int, ...]) -> tuple[dict[int, Memory], dict[int, Memory]]:
    swift: dict[int, Memory] = {}
    by_hand: dict[int, Memory] = {}
    for count in ranks:
        arguments = (
            *PADDED,
            *BACKEND,
            "--nproc",
            str(count),
            "--max_steps",
            str(MEMORY_STEPS),
            "--save_strategy",
            "no",
        )
        folder = swift_run(f"memory-{count}", *arguments, observers=["memory-of-each"], model=LARGE)
        swift[count] = _most(folder)
        batches = [json.loads((folder / f"memory-{rank}.json").read_text())["samples"] for rank in range(count)]
        own = _emptied(RUNS / f"by-hand-{count}")
        order = {"model": str(LARGE), "chats": str(CHATS), "batches": batches, "folder": str(own)}
        _torchrun("benchmarks.sharded_loop", count, order)
        by_hand[count] = _most(own)
    return swift, by_hand


def _long(name: str, ranks: tuple[int, ...]) -> dict[int, float]:
    peaks = {}
    for count in ranks:
        cut = (f"--parallel.{name}", str(count)) if count > 1 else ()
        place = (*BACKEND, "--nproc", str(count), "--max_steps", "3", "--save_strategy", "no")
        arguments = ("--per_device_train_batch_size", "1", "--max_length", str(LONGEST), *place, *cut)
        folder = swift_run(f"{name}-{count}", *arguments, observers=["memory-of-each"], data=LONG)
        peaks[count] = _most(folder)["training"]
    return peaks


def _most(folder: Path) -> Memory:
    each = [json.loads(path.read_text())["mib"] for path in folder.glob("memory-*.json")]
    return {phase: max(memory[phase] for memory in each) for phase in each[0]}


def _torchrun(module: str, count: int, order: dict[str, Any]) -> None:
    path = WORK / "order.json"
    path.write_text(json.dumps({"model": str(MODEL), "learning_rate": float(RATE), **order}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    call([*command, "-m", module, str(path)], environment())


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
