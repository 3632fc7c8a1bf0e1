"""Speed and peak memory of training, against a bare torch loop.

Speed: the two take turns within one process, step by step, while `swift sft` runs with its usual observers. Padded,
both train on the same batches, and their losses are compared. Packed, swift's rows hold as many tokens as a padded
batch holds on average, and real tokens are counted. Memory: each by itself in a process, on the same batches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.commands import PACKED, PADDED, TRAINING, call, environment, swift_run
from benchmarks.facts import Figure
from benchmarks.inputs import CHATS, MODEL, ROOT, WORK, ensure

WARM_UP = 5
BLOCK = 10
"""Steps whose tokens and seconds are added up before a ratio is taken: single steps differ in length."""
MEMORY_STEPS = 20

Turn = dict[str, Any]


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    steps = 25 if quick else 105
    padded = _turns("padded", steps, PADDED)
    packed = _turns("packed", steps, PACKED)
    batches = [turn["samples"] for turn in padded[:MEMORY_STEPS]]
    memory = {"swift": _swift_memory(), "bare": _bare_memory(batches)}
    figures = [
        Figure("padded: tokens/s over the bare loop's", median(_ratios(padded)), at_least=0.95),
        Figure("packed: real tokens/s over the bare padded loop's", median(_ratios(packed)), at_least=1.8),
        Figure("padded: peak memory over the bare loop's", memory["swift"] / memory["bare"], at_most=1.15),
        Figure("padded: largest relative difference of the loss", _loss_difference(padded), unit="", at_most=1e-5),
    ]
    details = {
        "arguments": {"both": _shown(TRAINING), "padded": PADDED, "packed": PACKED},
        "steps": steps,
        "padded": _summary(padded),
        "packed": _summary(packed),
        "peak_mib": memory,
    }
    return figures, details


def _turns(name: str, steps: int, arguments: tuple[str, ...]) -> list[Turn]:
    folder = swift_run(name, *arguments, "--max_steps", str(steps), observers=["bare-loop-in-turn"])
    return [json.loads(line) for line in (folder / "turns.jsonl").read_text().splitlines()]


def _ratios(turns: list[Turn]) -> list[float]:
    """Swift's real tokens per second over the bare loop's, block by block."""
    warm = turns[WARM_UP:]
    blocks = [warm[start : start + BLOCK] for start in range(0, len(warm), BLOCK)]
    return [_speed(block, "swift") / _speed(block, "bare") for block in blocks]


def _speed(turns: list[Turn], who: str) -> float:
    return float(sum(turn[who]["tokens"] for turn in turns) / sum(turn[who]["seconds"] for turn in turns))


def _loss_difference(turns: list[Turn]) -> float:
    return max(abs(turn["swift"]["loss"] / turn["bare"]["loss"] - 1) for turn in turns)


def _summary(turns: list[Turn]) -> dict[str, Any]:
    warm = turns[WARM_UP:]
    return {
        "tokens_per_second": {who: _speed(warm, who) for who in ("swift", "bare")},
        "median_step_seconds": {who: median(turn[who]["seconds"] for turn in warm) for who in ("swift", "bare")},
        "ratio_by_block": _ratios(turns),
    }


def _swift_memory() -> float:
    folder = swift_run("memory", *PADDED, "--max_steps", str(MEMORY_STEPS), observers=["stopwatch"])
    return float(json.loads((folder / "stopwatch.json").read_text())["peak_mib"])


def _bare_memory(batches: list[list[int]]) -> float:
    order = WORK / "order.json"
    content = {"model": str(MODEL), "chats": str(CHATS), "learning_rate": 1e-4, "batches": batches}
    order.write_text(json.dumps(content))
    printed = call([sys.executable, "-m", "benchmarks.bare_loop", str(order)], environment())
    return float(json.loads(printed)["peak_mib"])


def _shown(arguments: tuple[str, ...]) -> list[str]:
    return [str(Path(each).relative_to(ROOT)) if each.startswith(str(ROOT)) else each for each in arguments]
