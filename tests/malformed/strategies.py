"""Hypothesis strategies for malformed JSON, and how many examples a property has."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from spoil import GONE, NOT_A_FILE, NOT_AN_OBJECT, Keys, every_key

QUICK = False
"""Whether this is the run of `make test`, in which properties have a fifth of their examples."""

KINDS: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "switch": (True, False),
    "number": (5, -1, 1.5, 0),
    "text": ("x", "", "7"),
    "list": ([], [1], ["a"], [None], [[1]], [{"a": 1}]),
    "mapping": ({}, {"a": 1}, {"": None}),
}
"""What JSON can hold, by kind."""
UNUSABLE: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, 10**30, 1e300, "\ud800", "a\0b", {"\ud800": 1}, "x" * 5000,
)  # fmt: skip
"""Values that hardly any key takes, whatever its kind."""


def examples(count: int) -> settings:
    """Return the settings of a property with so many examples."""
    return settings(max_examples=max(count // 5, 3) if QUICK else count)


def wrong(*right: str) -> st.SearchStrategy[Any]:
    """Return values of other kinds than the right ones, and unusable ones."""
    return st.sampled_from([v for kind, values in KINDS.items() if kind not in right for v in values] + [*UNUSABLE])


def spoiled(document: Any, only: Collection[str] = (), gone: bool = True) -> st.SearchStrategy[tuple[Keys, Any]]:
    """Return the keys of values in a JSON document, each with a value that replaces what is there, or `GONE`.

    `only` names the keys at the top that are spoiled.
    """
    known = [keys for keys in every_key(document) if not only or keys[0] in only]
    return st.tuples(st.sampled_from(known), wrong() | st.just(GONE) if gone else wrong())


not_a_file = st.sampled_from(sorted(NOT_A_FILE))
not_an_object = st.sampled_from(sorted(NOT_AN_OBJECT))
bad_file = not_a_file | not_an_object
"""Names of the ways in `spoil.BAD` to spoil a whole file."""
