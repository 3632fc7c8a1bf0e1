"""The reward `toolcalls`: whether a completion calls the tools that the solution calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from swift.config.options import Section
from swift.contracts import RewardItem
from swift_rl.rewards.base import CompletionReward

_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_REACT = re.compile(r"Action:\s*(.*?)\s*Action Input:\s*(.*?)(?=\s*(?:Observation:|Thought:|Action:|\Z))", re.DOTALL)

Call = tuple[str, Any]
"""Name and arguments."""


class ToolCallsOptions(Section):
    """Options of `toolcalls`."""

    partial: bool = Field(False, description="Use the F1 score of calls and arguments instead of 0 if some differ")


class ToolCallsReward(CompletionReward):
    """1 if the completion makes the solution's calls, in any order, else 0; None without a valid solution.

    Calls are `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, or `Action:` with `Action Input:`; the column
    `solution` may also be JSON: a call or a list of them.
    """

    options_model = ToolCallsOptions
    wants = ("solution",)

    def __init__(self, options: ToolCallsOptions) -> None:
        self._partial = options.partial

    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion."""
        solution = item.columns.get("solution")
        expected = calls_in(solution) if isinstance(solution, str) else _listed(solution)
        if expected is None:
            return None
        made = calls_in(item.completion) or []
        shared = _shared(expected, made)
        score = 2 * shared / (len(expected) + len(made)) if expected or made else 1.0
        return score if self._partial or score == 1.0 else 0.0


def calls_in(text: str) -> list[Call] | None:
    """Return the calls of a text in any of the notations; None where it has none."""
    if tagged := _TAGGED.findall(text):
        return [call for each in tagged for call in _listed(_json(each)) or [("", each)]]
    if acted := _REACT.findall(text):
        return [(name, _json(given)) for name, given in acted]
    return _listed(_json(text))


def _listed(value: Any) -> list[Call] | None:
    values = value if isinstance(value, list) else [value]
    found = []
    for each in values:
        each = each.get("function", each) if isinstance(each, Mapping) else each
        if not isinstance(each, Mapping) or "name" not in each:
            return None
        arguments = each.get("arguments", each.get("parameters", {}))
        found.append((str(each["name"]), _json(arguments) if isinstance(arguments, str) else arguments))
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()


def _shared(expected: Sequence[Call], made: Sequence[Call]) -> float:
    """Return how much of the calls is the same: each expected call is compared with the one that is most like it."""
    left, shared = list(made), 0.0
    for call in expected:
        if not left:
            break
        best = max(left, key=lambda other: _alike(call, other))
        shared += _alike(call, best)
        if _alike(call, best):
            left.remove(best)
    return shared


def _alike(one: Call, other: Call) -> float:
    """Return 1 for equal calls, 0 for other tools, and the F1 of their arguments between."""
    if one[0] != other[0]:
        return 0.0
    if one[1] == other[1]:
        return 1.0
    if not isinstance(one[1], Mapping) or not isinstance(other[1], Mapping):
        return 0.0
    same = len([key for key, value in one[1].items() if key in other[1] and other[1][key] == value])
    return 2.0 * same / (len(one[1]) + len(other[1]))
