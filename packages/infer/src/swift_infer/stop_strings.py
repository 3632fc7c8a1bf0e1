"""Strings that end a completion, found by decoding its tokens: engines know tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from swift.contracts import Sampling

_BYTES = 4
"""Tokens that one letter may take at most, where a token is a byte."""
_BEFORE = 8
"""Tokens read in front of those that may hold a stop string: the first of a sequence may be decoded differently."""


class StopStrings:
    """Finds the first stop string of a completion."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        # Decoding leaves special tokens out, so those that a string names are found by their numbers.
        added = tokenizer.get_added_vocab() if self._stops else {}
        self._marks = {added[stop] for stop in self._stops if stop in added}
        self._span = _BYTES * max(map(len, self._stops), default=0) + _BEFORE

    def applied_to(self, sampling: Sampling) -> Sampling:
        """Return the sampling with which an engine ends a completion at the first stop string."""
        return replace(sampling, is_over=self.is_over) if self._stops else sampling

    def before(self, text: str) -> tuple[str, bool]:
        """Return the text in front of the first stop string, and whether there is one."""
        positions = [position for stop in self._stops if (position := text.find(stop)) >= 0]
        return (text[: min(positions)], True) if positions else (text, False)

    def certain(self, text: str) -> str:
        """Return the text without an end that may be the beginning of a stop string."""
        begun = max(
            (size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0
        )
        return text[: len(text) - begun]

    def is_over(self, tokens: Sequence[int]) -> bool:
        """Return whether a completion of these tokens holds a stop string near its end."""
        if tokens[-1] in self._marks:
            return True
        text = self._tokenizer.decode(tokens[-self._span :], skip_special_tokens=True)
        return any(stop in text for stop in self._stops)
