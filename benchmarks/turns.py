"""Swift and a loop written by hand in turn within the same processes: step by step, on a machine in the same mood."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from benchmarks.commands import swift_run

WARM_UP = 5
BLOCK = 10
"""Steps whose tokens and seconds are added up before a ratio is taken: single steps differ in length."""

Turn = dict[str, Any]


def turns(name: str, steps: int, *arguments: str, observer: str = "loop-in-turn", **inputs: Any) -> list[Turn]:
    """What swift and the other loop did in turn, step by step; `inputs` are those of `swift_run`."""
    folder = swift_run(name, *arguments, "--max_steps", str(steps), observers=[observer], **inputs)
    return [json.loads(line) for line in (folder / "turns.jsonl").read_text().splitlines()]


def ratios(turns: list[Turn], clock: str = "seconds") -> list[float]:
    """Swift's real tokens per second over the other loop's, block by block; by another clock of the turns, if named."""
    warm = turns[WARM_UP:]
    blocks = [warm[start : start + BLOCK] for start in range(0, len(warm), BLOCK)]
    return [_speed(block, "swift", clock) / _speed(block, "other", clock) for block in blocks]


def _speed(turns: list[Turn], who: str, clock: str = "seconds") -> float:
    return float(sum(turn[who]["tokens"] for turn in turns) / sum(turn[who][clock] for turn in turns))


def loss_difference(turns: list[Turn]) -> float:
    """Return the largest, relative."""
    return max(abs(turn["swift"]["loss"] / turn["other"]["loss"] - 1) for turn in turns)


def summary(turns: list[Turn]) -> dict[str, Any]:
    """What the ratios were made of."""
    warm = turns[WARM_UP:]
    return {
        "tokens_per_second": {who: _speed(warm, who) for who in ("swift", "other")},
        "median_step_seconds": {who: median(turn[who]["seconds"] for turn in warm) for who in ("swift", "other")},
        "ratio_by_block": ratios(turns),
    }
