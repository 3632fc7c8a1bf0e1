"""How fast `swift plan` searches: from the command to its screen, layouts a second, and the largest search."""

from __future__ import annotations

import resource
import subprocess
import time
from typing import Any

from benchmarks.commands import SWIFT, environment
from benchmarks.facts import Figure
from benchmarks.inputs import WORK

SMALL = ("plan", "llama-3.1-8b", "--gpus", "8xH100", "--train_type", "full", "--max_length", "8192")
LARGE = (
    "plan", "llama-3.1-405b", "--gpus", "2048x8xH100", "--train_type", "full", "--max_length", "8192",
    "--global_batch_size", "2048",
)  # fmt: skip


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of; CPU seconds, which other work on the machine adds little to."""
    rounds = 1 if quick else 5
    small = min(_command(SMALL)[0] for _ in range(rounds))
    large = min(_command(LARGE)[0] for _ in range(rounds))
    _, memory = _command(LARGE)
    speed, layouts = max(_search() for _ in range(rounds))
    figures = [
        Figure("8B on 8 devices: from the command to its end, CPU", small, "s", at_most=1.0),
        Figure("405B on 16,384 devices: from the command to its end, CPU", large, "s", at_most=10.0),
        Figure("405B on 16,384 devices: peak memory", memory, "MB", at_most=300.0),
        Figure("plans compared a second of one core", speed, "", at_least=20_000.0),
    ]
    return figures, {"plans of the large search": layouts}


def _command(words: tuple[str, ...]) -> tuple[float, float]:
    """Run a command; its CPU seconds, and the most memory of any command so far in MB."""
    WORK.mkdir(parents=True, exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([SWIFT, *words], check=True, capture_output=True, cwd=WORK, env=environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, after.ru_maxrss * 1024 / 1e6


def _search() -> tuple[float, int]:
    """Search in this process; plans a second, and how many there were."""
    from swift.planning import planned_backends
    from swift_plan.cluster import cluster
    from swift_plan.known import config_of
    from swift_plan.search import search
    from swift_plan.shape import shape_of
    from swift_plan.timing import Timing

    where, config = cluster("2048x8xH100"), config_of("llama-3.1-405b")
    words = ["--model", "llama-3.1-405b", "--train_type", "full", "--max_length", "8192", "--global_batch_size", "2048"]
    backends, _ = planned_backends(words, "sft")
    began = time.process_time()
    found = search(backends, shape_of(config, "405b"), config, where, Timing(where))
    return found.tried / (time.process_time() - began), found.tried
