"""Rows per second from a file of chats to tokens and masks, with one and two processes, and memory.

Figures are CPU seconds of all processes; wall-clock time is recorded too. Memory is the peak of the parent and of its
largest worker, including loaded modules.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alternation import Rounds
from benchmarks.commands import call_module
from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, MODEL, WORK, ensure
from benchmarks.peer import ONE_THREAD, read_order

FOLDER = WORK / "tokenising"
ROWS = 20_000
"""Of the comparison of one process and two."""
FEW, MANY = 200_000, 2_000_000


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    ensure()
    rows, few, many = (4_000, 8_000, 16_000) if quick else (ROWS, FEW, MANY)
    turns = Rounds({str(workers): partial(_run, workers, rows) for workers in (1, 2)}, 1 if quick else 3)
    memory = {str(count): _run(2, count) for count in (few, many)}
    grown = memory[str(many)]["memory_mib"] / memory[str(few)]["memory_mib"]
    figures = [
        Figure("two cores over one, by the busiest process's CPU time", turns.ratio("1", "2", "busiest"), at_least=1.8),
        Figure("two cores over one, by the clock", turns.ratio("1", "2", "seconds")),
        Figure(f"memory at {many:,} rows over that at {few:,}", grown, at_most=1.25),
        Figure("ways that made other tokens or masks", turns.odd("digest"), unit="", at_most=0),
        Figure("rows per second of one core's time", rows / turns.median("1", "cpu"), unit=""),
    ]
    return figures, {"rows": rows, "turns": turns.taken, "memory": memory}


def _run(workers: int, rows: int) -> dict[str, Any]:
    """Tokenise the benchmarks' chats, again and again, in a process of its own."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"chats-{rows}.jsonl"
    if not path.exists():
        lines = CHATS.read_text(encoding="utf-8").splitlines(keepends=True)
        with path.open("w", encoding="utf-8") as file:
            for start in range(0, rows, len(lines)):
                file.writelines(lines[: rows - start])
    order = {"data": str(path), "workers": workers, "rows": rows}
    found: dict[str, Any] = json.loads(call_module("benchmarks.tokenising", order, **ONE_THREAD).splitlines()[-1])
    return found


def tokenise(data: Path, workers: int) -> dict[str, Any]:
    """Return what it takes; seconds begin when the tokenizer is loaded and end when the tokens can be read."""
    import numpy as np
    import xxhash
    from transformers import AutoTokenizer

    from swift.config.sections import DataSection

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    pipeline = importlib.import_module("swift.data.pipeline")
    cache = FOLDER / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    before, start = _cpu(), time.perf_counter()
    section = DataSection(train=(str(data),), cache=cache, workers=workers, max_length=4096)
    pipeline.prepare_data(section, tokenizer, encoding="chat", seed=0, say=lambda _: None)
    (folder,) = cache.iterdir()
    arrays = [np.memmap(folder / f"{name}.bin", kind, "r") for name, kind in (("ids", "i4"), ("weights", "f4"))]
    seconds, after = time.perf_counter() - start, _cpu()
    digest = xxhash.xxh3_128()
    for array in arrays:
        for start_of_piece in range(0, len(array), 1 << 20):
            digest.update(array[start_of_piece : start_of_piece + (1 << 20)].tobytes())
    own, others = after[0] - before[0], after[1] - before[1]
    return {
        "seconds": seconds,
        "cpu": own + others,
        "busiest": max(own, others / workers),
        "memory_mib": _memory(workers),
        "digest": digest.hexdigest(),
    }


def _cpu() -> tuple[float, float]:
    """CPU seconds of this process, and of its workers that have ended."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own, workers = (usage.ru_utime + usage.ru_stime for usage in each)
    return own, workers


def _memory(workers: int) -> float:
    """Peak of this process, and of its largest worker as often as there are workers."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if workers > 1 else 0
    return (own + workers * largest) / 1024


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    own_order = read_order()
    print(json.dumps(tokenise(Path(own_order["data"]), own_order["workers"])))
