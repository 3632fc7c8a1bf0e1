"""The FSDP backend: speed against FSDP2 by hand and the Trainer's, memory by processes, and long samples."""

from __future__ import annotations

from typing import Any

from benchmarks.commands import swift_run
from benchmarks.engines import UNSAVED, Engine, memory, most, speed, watched
from benchmarks.facts import Figure
from benchmarks.inputs import LONG, LONGEST, ensure

RANKS = (1, 2, 4)
FSDP = Engine("fsdp", ("--backend", "fsdp"), "benchmarks.sharded_loop", "sharded-loop-in-turn", "FSDP2 by hand")


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    ranks = RANKS[:2] if quick else RANKS
    of_speed, speed_details = speed(FSDP, quick)
    of_memory, memory_details = memory(FSDP, ranks)
    long = {name: {count: _long(name, count) for count in ranks} for name in ("ulysses", "cp")}
    of_long = [
        Figure(f"{LONGEST} tokens, {name} {count}: peak of each over one process's", peaks[count] / peaks[1])
        for name, peaks in long.items()
        for count in ranks[1:]
    ]
    return [*of_speed, *of_memory, *of_long], {**speed_details, **memory_details, "long_sequence_mib": long}


def _long(name: str, count: int) -> float:
    """Peak in training on one sample of as many tokens as the model has positions for, cut over the processes."""
    cut = (f"--parallel.{name}", str(count)) if count > 1 else ()
    place = (*FSDP.arguments, *cut, "--nproc", str(count), "--max_steps", "3", *UNSAVED)
    arguments = ("--per_device_train_batch_size", "1", "--max_length", str(LONGEST), *place)
    return most(swift_run(f"{name}-{count}", *arguments, **watched(data=LONG)))["training"]
