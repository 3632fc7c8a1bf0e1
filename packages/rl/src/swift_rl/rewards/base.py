"""Base of rewards that score each completion by itself, and the final answer that they compare."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from swift.contracts import RewardItem

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOXED = "\\boxed{"


class CompletionReward(ABC):
    """Implements `swift.contracts.Reward`; a subclass defines `score_one`."""

    @abstractmethod
    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion; None if the reward does not apply to it."""

    def score(self, items: Sequence[RewardItem]) -> list[float | None]:
        """Return a value for each completion."""
        return [self.score_one(item) for item in items]


def final_answer(text: str) -> str:
    """Return the last tagged answer, else the last boxed one, else everything after the thinking."""
    rest = text.rpartition("</think>")[2]
    tagged = _TAGGED.findall(rest)
    if tagged:
        return str(tagged[-1]).strip()
    boxed = last_boxed(rest)
    return (rest if boxed is None else boxed).strip()


def tagged_answer(text: str) -> str | None:
    """Return what stands between the first pair of `<answer>` tags; None without one."""
    found = _TAGGED.search(text)
    return None if found is None else found[1].strip()


def last_boxed(text: str) -> str | None:
    """Return the content of the last closed LaTeX box; None without one."""
    end = len(text)
    while (start := text.rfind(_BOXED, 0, end)) >= 0:
        depth = 1
        for index in range(start + len(_BOXED), len(text)):
            depth += {"{": 1, "}": -1}.get(text[index], 0)
            if not depth:
                return text[start + len(_BOXED) : index]
        end = start
    return None


def solutions_of(columns: Any) -> list[str]:
    """Return the accepted solutions of a row, as strings; an empty list if it has none."""
    value = columns.get("solution")
    values = value if isinstance(value, list | tuple) else [value]
    return [str(each) for each in values if each is not None]
