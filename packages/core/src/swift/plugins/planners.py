"""Planners as core calls them: errors name the planner, and results are checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from swift.contracts.planner import ChosenPlan, ExpectedMemory
from swift.errors import PluginError, SwiftError, UsageError
from swift.plugins import discover
from swift.plugins.blame import failing, keep_traceback
from swift.plugins.load import load
from swift.plugins.return_values import returned, wrong

if TYPE_CHECKING:
    from swift.contracts import RequestedRun
    from swift.plugins.entry import PluginEntry

_GROUP = "swift.planners"


def choose(argv: Sequence[str], command: str, processes: int, machines: int) -> ChosenPlan:
    """Return what the one installed planner chooses for a run."""
    entries = _allowed()
    if not entries:
        raise UsageError("No planner is installed.", hint='Run: pip install "swift-core[plan]"')
    if len(entries) > 1:
        raise PluginError(
            f"Several planners are installed: {', '.join(map(str, entries))}.",
            hint=f"Allow only one of them, and your other plugins: {discover.ALLOW_LIST}={entries[0].distribution},...",
        )
    planner = load(entries[0]).object
    with failing(entries[0], "choose"):
        came: ChosenPlan = planner.choose(argv, command, processes, machines)
    returned(entries[0], "choose", came, ChosenPlan)
    return came


def foreseen(run: RequestedRun, argv: Sequence[str], command: str) -> str | None:
    """Return a planner's warning; of one that fails, its error: that is no reason not to train."""
    try:
        warning: str | None = _first("foresee", str | None, run, list(argv), command)
        return warning
    except PluginError as failure:
        keep_traceback(failure)
        return failure.message
    except SwiftError:  # it cannot count such a run
        return None


def lacking(run: RequestedRun, peak: float) -> str | None:
    """Return how a planner explains a run that has run out of memory; None where none does, or it fails."""
    try:
        lines: str | None = _first("lacking", str | None, run, peak)
        return lines
    except SwiftError:  # the error of the run is what counts
        return None


def expected(run: RequestedRun, argv: Sequence[str], command: str, say: Callable[[str], None]) -> ExpectedMemory | None:
    """Return what a planner expects of a run; None where none does, or it fails, which is printed."""
    try:
        memory: ExpectedMemory | None = _first("expect", ExpectedMemory | None, run, list(argv), command)
        return memory
    except PluginError as failure:
        say(failure.message)
    except SwiftError:
        pass
    return None


def _allowed() -> list[PluginEntry]:
    return [entry for entry in discover.list_plugins(_GROUP) if entry.allowed]


def _first(name: str, kind: Any, *arguments: Any) -> Any:
    """Return what the first planner with an optional method returns; None where there is none."""
    for entry in _allowed():
        if (method := getattr(load(entry).object, name, None)) is None:
            continue
        with failing(entry, name):
            came = method(*arguments)
        came = returned(entry, name, came, kind)
        if isinstance(came, ExpectedMemory) and not math.isfinite(came.peak_bytes + came.high_bytes + came.low_bytes):
            raise wrong(entry, name, "finite numbers of bytes", came)
        return came
    return None
