"""Examples for property-based tests, drawn from a seed that is the name of what they spoil: the same in every run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from judge import Case, judge

T = TypeVar("T")

KINDS: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "switch": (True, False),
    "number": (5, -1, 1.5, 0),
    "text": ("x", "", "7"),
    "list": ([], [1], ["a"], [None], [[1]], [{"a": 1}]),
    "mapping": ({}, {"a": 1}, {"": None}),
}
"""What JSON can hold, by kind."""
NEVER: tuple[Any, ...] = (math.nan, math.inf, -math.inf, 10**30, 1e300, "\ud800", "a\0b", {"\ud800": 1}, "x" * 5000)
"""Values that hardly any key can take, whatever its kind."""


def drawn(name: str, values: Iterable[T], count: int) -> list[T]:
    """So many of the values, or all where there are fewer."""
    known = list(values)
    return Random(name).sample(known, min(count, len(known)))


def wrong(name: str, count: int, *right: str) -> list[Any]:
    """So many values of other kinds than the right ones, each of another kind while there are some, or of no use."""
    draw = Random(name)
    kinds = [*(list(values) for kind, values in KINDS.items() if kind not in right), list(NEVER)]
    draw.shuffle(kinds)
    return [draw.choice(kinds[number % len(kinds)]) for number in range(count)]


def judge_all(cases: Sequence[Case], template: Path) -> None:
    """Judge each example of a property; the first that is unclear fails the test, with its name."""
    assert cases
    for case in cases:
        judge(case, template)
