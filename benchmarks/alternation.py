"""Alternate swift and another loop step by step, so that both run under the same load of the machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks.commands import swift_run
from benchmarks.facts import Figure, read_lines

WARM_UP = 5
BLOCK = 10
"""Steps whose tokens and seconds are added up before a ratio is taken: single steps differ in length."""

Turn = dict[str, Any]


def turns(name: str, steps: int, *arguments: str, observer: str = "loop-in-turn", **inputs: Any) -> list[Turn]:
    """Return the steps of swift and of the other loop; `inputs` are those of `swift_run`."""
    folder = swift_run(name, *arguments, "--max_steps", str(steps), observers=[observer], **inputs)
    return read_lines(folder / "turns.jsonl")


def ratios(turns: list[Turn], clock: str = "seconds", of: str = "tokens") -> list[float]:
    """Return swift's real tokens (or another count) per second over the other loop's, block by block."""
    warm = turns[WARM_UP:]
    blocks = [warm[start : start + BLOCK] for start in range(0, len(warm), BLOCK)]
    return [speed(block, "swift", clock, of) / speed(block, "other", clock, of) for block in blocks]


def speed(turns: list[Turn], who: str, clock: str = "seconds", of: str = "tokens") -> float:
    """Return what one of the two did per second of these steps."""
    return float(sum(turn[who][of] for turn in turns) / sum(turn[who][clock] for turn in turns))


def loss_difference(turns: list[Turn]) -> float:
    return max(abs(turn["swift"]["loss"] / turn["other"]["loss"] - 1) for turn in turns)


def figures_in_turn(title: str, other: str, turns: list[Turn], at_least: float) -> list[Figure]:
    """Return the speed over the other loop's, and that both computed the same."""
    return [
        Figure(f"{title}: tokens/s over {other}", median(ratios(turns)), at_least=at_least),
        Figure(f"{title}: largest relative difference of the loss", loss_difference(turns), "", at_most=1e-5),
    ]


def summary(turns: list[Turn]) -> dict[str, Any]:
    warm = turns[WARM_UP:]
    return {
        "tokens_per_second": {who: speed(warm, who) for who in ("swift", "other")},
        "median_step_seconds": {who: median(turn[who]["seconds"] for turn in warm) for who in ("swift", "other")},
        "ratio_by_block": ratios(turns),
    }


class Rounds:
    """Variants measured side by side, round by round, so that each meets the machine in the same state."""

    def __init__(self, variants: Mapping[str, Callable[[], Any]], count: int) -> None:
        self.taken = [{name: run() for name, run in variants.items()} for _ in range(count)]

    def ratio(self, over: str, under: str, value: Value) -> float:
        """Return the median over rounds of a value of one variant over that of another."""
        return median(_value(each[over], value) / _value(each[under], value) for each in self.taken)

    def median(self, name: str, value: Value) -> float:
        """Return the median of a variant's value over rounds."""
        return median(_value(each[name], value) for each in self.taken)

    def medians(self, value: Value) -> dict[str, float]:
        return {name: self.median(name, value) for name in self.taken[0]}

    def odd(self, value: str) -> float:
        """Return how many values there are beyond the one that all variants should have."""
        return float(len({each[value] for taken in self.taken for each in taken.values()}) - 1)


Value = str | Callable[[Any], float]
"""A key of what a variant returned, or what computes a number of it."""


def _value(taken: Any, value: Value) -> float:
    return float(taken[value] if isinstance(value, str) else value(taken))


def note_on_load() -> str:
    """Return what readers of figures by the clock must know of the machine."""
    return (
        f"Both computed in one thread. {os.getloadavg()[0]:.0f} processes wanted to run at the end of it: where that "
        "is more than there are cores, CPU seconds are the fair figure."
    )
