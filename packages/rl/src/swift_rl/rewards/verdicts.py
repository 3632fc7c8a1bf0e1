"""Verdicts of rewards on completions, and the check of what a reward returned."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from swift.errors import SwiftError

_CALLERS = tuple(str(Path(__file__).with_name(name)) for name in ("worker.py", "loading.py", "functions.py", "pool.py"))
MOST_OUTPUT = 4000
"""Characters that are kept of what a call printed, and of its traceback."""


@dataclass(frozen=True)
class Verdict:
    """The verdict of one reward on one completion."""

    value: float | None
    """None where the reward does not apply, or failed and `reward_on_error` is not 'zero'."""
    failure: str | None = None
    """Why there is no value, in one line; None for a reward that has one or does not apply."""
    output: str = ""
    """What the call printed, and its traceback where it raised; the beginning of both."""
    seconds: float = 0.0
    """How long the call took."""


Failure = TypeVar("Failure", bound=SwiftError)
Checked = tuple[float | None, str | None]
"""A value, or None and why: an empty reason means that the reward does not apply."""


def checked(returned: Any, count: int) -> list[Checked]:
    """Return a value or a reason for each completion of a call that returned `returned`."""
    values = returned.tolist() if hasattr(returned, "tolist") else returned
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        return [(None, f"returned {_shown(returned)}, expected a list of {count}")] * count
    if len(values) != count:
        return [(None, f"returned {len(values)} values for {count} completions")] * count
    return [_checked_value(value) for value in values]


def _checked_value(value: Any) -> Checked:
    if value is None:
        return None, None
    if isinstance(value, Exception):
        return None, in_one_line(value)
    number = finite(value)
    return (number, None) if number is not None else (None, f"returned {_shown(value)}, expected a finite number")


def finite(value: Any) -> float | None:
    """Return what user code returned as a finite number; None if it is none."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def in_one_line(problem: BaseException) -> str:
    """Return the type and the text of an error."""
    try:
        text = _printable(" ".join(str(problem).split()))
    except BaseException:  # whatever its author made of it
        text = "its text cannot be shown"
    kind: str = type.__dict__["__name__"].__get__(type(problem))  # whatever its metaclass made of it
    return _short(f"{kind}: {text}" if text else kind)


def traceback_text(problem: BaseException) -> str:
    """Return the traceback of an error from the reward's first frame on, or nothing where it was not raised in one."""
    frames = BaseException.__dict__["__traceback__"].__get__(problem)  # whatever its class made of it
    while frames is not None and _calls_rewards(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if frames is None and not isinstance(problem, SyntaxError):
        return ""
    try:
        text = "".join(traceback.format_exception(type(problem), problem, frames))
    except BaseException:
        text = in_one_line(problem)
    return text[-MOST_OUTPUT:]


def with_traceback(failure: Failure, output: str) -> Failure:
    """Return the error with the output and traceback of the user code's process, for the traceback file."""
    if output:
        failure.traceback_of = RuntimeError("the process that ran it printed:")
        failure.traceback_of.add_note(output)
    return failure


def _calls_rewards(file: str) -> bool:
    return file in _CALLERS or file.startswith("<frozen importlib")


def _shown(value: Any) -> str:
    try:
        return _printable(_short(repr(value)))
    except BaseException:
        return f"an object of the type {type(value).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]} ..."


def _printable(text: str) -> str:
    """Return a text without what a terminal would act on."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in _short(text))
