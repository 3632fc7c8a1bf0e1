"""Planners as core calls them: what they raise is blamed on them, and what they return is looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from swift.contracts.planner import ChosenPlan, ExpectedMemory
from swift.errors import PluginError, SwiftError, UsageError
from swift.plugins import discover
from swift.plugins.blame import failing, keep_traceback
from swift.plugins.load import load
from swift.plugins.return_values import wrong

if TYPE_CHECKING:
    from swift.contracts import Run
    from swift.plugins.entry import PluginEntry

_GROUP = "swift.planners"


def choose(words: Sequence[str], command: str, processes: int, machines: int) -> ChosenPlan:
    """Return what the one installed planner chooses for a run."""
    entries = _allowed()
    if not entries:
        raise UsageError(
            "Nothing is installed that chooses backend and layout.", hint='Run: pip install "swift-core[plan]"'
        )
    if len(entries) > 1:
        raise PluginError(
            f"Several planners are installed: {', '.join(map(str, entries))}.",
            hint=f"Allow only one of them, and your other plugins: {discover.ALLOW_LIST}={entries[0].distribution},...",
        )
    entry = entries[0]
    planner = load(entry).object
    with failing(entry, "choose"):
        came: Any = planner.choose(words, command, processes, machines)
        flags, reason = getattr(came, "flags", None), getattr(came, "reason", None)
        if not isinstance(flags, tuple) or not all(isinstance(flag, str) for flag in flags):
            raise wrong(entry, "choose", "a swift.contracts.ChosenPlan", came)
        if not isinstance(reason, str):
            raise wrong(entry, "choose", "a ChosenPlan whose reason is a text", reason)
        return ChosenPlan(flags, reason)


def foreseen(run: Run, words: Sequence[str], command: str) -> str | None:
    """Return what a planner warns of; of one that fails, that it did: it is no reason not to train."""
    try:
        return _first_text("foresee", run, list(words), command)
    except PluginError as failure:
        keep_traceback(failure)
        return failure.message
    except SwiftError:  # it cannot count such a run
        return None


def lacking(run: Run, peak: float) -> str | None:
    """Return how a planner explains a run that has run out of memory; None where none does, or it fails."""
    try:
        return _first_text("lacking", run, peak)
    except SwiftError:  # the error of the run is what counts
        return None


def expected(run: Run, words: Sequence[str], command: str, say: Callable[[str], None]) -> ExpectedMemory | None:
    """Return what a planner expects of a run; None where none does, or it fails, which is said."""
    try:
        for entry, expect in _methods("expect"):
            with failing(entry, "expect"):
                came: Any = expect(run, list(words), command)
                if came is not None and not _is_expected(came):
                    raise wrong(entry, "expect", "a swift.contracts.ExpectedMemory of finite numbers, or None", came)
            return cast("ExpectedMemory | None", came)
    except PluginError as failure:
        say(failure.message)
    except SwiftError:
        pass
    return None


def _allowed() -> list[PluginEntry]:
    return [entry for entry in discover.list_plugins(_GROUP) if entry.allowed]


def _methods(name: str) -> Iterator[tuple[PluginEntry, Any]]:
    """Yield the planners that have an optional method, each with the method."""
    for entry in _allowed():
        planner = load(entry).object
        with failing(entry, name):
            method = getattr(planner, name, None)
        if method is not None:
            yield entry, method


def _first_text(name: str, *arguments: Any) -> str | None:
    for entry, method in _methods(name):
        with failing(entry, name):
            came: Any = method(*arguments)
            if came is not None and not isinstance(came, str):
                raise wrong(entry, name, "a text, or None", came)
        return came
    return None


def _is_expected(came: object) -> bool:
    if not isinstance(came, ExpectedMemory):
        return False
    sizes = (came.peak_bytes, came.low_bytes, came.high_bytes, came.capacity_bytes)
    return all(isinstance(size, int | float) and math.isfinite(size) for size in sizes)
