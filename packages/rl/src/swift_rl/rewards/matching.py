"""Rewards that compare the final answer with the column `solution`: as a string, a letter or a number."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from swift.config.limits import Pattern
from swift.config.options import Section
from swift.contracts import RewardItem
from swift.errors import ConfigError
from swift_rl.rewards.base import CompletionReward, final_answer, solutions_of

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_STATED_CHOICE = re.compile(r"answer(?:\s+is)?\s*:?\s*\(?([A-J])\b(?!')", re.IGNORECASE)
_CHOICE = re.compile(r"(?<![\w'])([A-J])(?![\w'])")


class ExactMatchOptions(Section):
    """Options of `exact_match`."""

    ignore_case: bool = Field(True, description="Whether a and A are the same")


class ExactMatchReward(CompletionReward):
    """1 where the final answer is a solution of the row, whatever the spaces; 0 otherwise. None without a solution."""

    options_model = ExactMatchOptions
    wants = ("solution",)
    isolation = "inline"

    def __init__(self, options: ExactMatchOptions) -> None:
        self._ignore_case = options.ignore_case

    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion."""
        accepted = {self._normal(final_answer(each)) for each in solutions_of(item.columns)}
        return float(self._normal(final_answer(item.completion)) in accepted) if accepted else None

    def _normal(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self._ignore_case else text


class RegexOptions(Section):
    """Options of `regex`."""

    pattern: Pattern | None = Field(None, description="Regular expression; without it, the column `pattern`")
    whole: bool = Field(False, description="Match the whole completion instead of a part")


class RegexReward(CompletionReward):
    """1 if a regular expression matches in the completion (`.` matches line breaks too); 0 otherwise."""

    options_model = RegexOptions

    def __init__(self, options: RegexOptions) -> None:
        self._options = options
        self.wants = () if options.pattern else ("pattern",)
        try:
            re.compile(options.pattern or "")
        except re.error as problem:
            raise ConfigError(f"reward_options.regex.pattern is not a valid regular expression: {problem}.") from None

    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion."""
        pattern = self._options.pattern or item.columns.get("pattern")
        if pattern is None:
            return None
        match = re.fullmatch if self._options.whole else re.search
        return float(match(pattern, item.completion, re.DOTALL) is not None)


class ChoiceReward(CompletionReward):
    """1 where the letter that the completion chooses, A to J, is the solution's; 0 otherwise.

    That is the one after the last "answer is", or else the last that stands alone.
    """

    wants = ("solution",)
    isolation = "inline"

    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion."""
        accepted = {letter for each in solutions_of(item.columns) if (letter := chosen_letter(each))}
        return float(chosen_letter(item.completion) in accepted) if accepted else None


def chosen_letter(text: str) -> str | None:
    """Return the letter that a text chooses; None where it chooses none."""
    final = final_answer(text)
    if len(final.strip("().: ")) == 1:
        return final.strip("().: ").upper()
    letters = _STATED_CHOICE.findall(final) or _CHOICE.findall(final)
    return letters[-1].upper() if letters else None


class NumberOptions(Section):
    """Options of `number`."""

    tolerance: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        1e-6, description="How far it may be off, as a part of the solution"
    )


class NumberReward(CompletionReward):
    """1 where the last number of the final answer is the last number of the solution; 0 otherwise."""

    options_model = NumberOptions
    wants = ("solution",)
    isolation = "inline"

    def __init__(self, options: NumberOptions) -> None:
        self._tolerance = options.tolerance

    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion."""
        accepted = [number for each in solutions_of(item.columns) if (number := last_number(each)) is not None]
        if not accepted:
            return None
        found = last_number(item.completion)
        return float(found is not None and any(abs(found - each) <= self._tolerance * abs(each) for each in accepted))


def last_number(text: str) -> float | None:
    """Return the last number of a text's final answer; None where it has none."""
    numbers = _NUMBER.findall(final_answer(text))
    return float(numbers[-1].replace(",", "")) if numbers else None
