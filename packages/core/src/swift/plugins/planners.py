"""Planners as core calls them: errors name the planner, and results are checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from swift.contracts import RequestedRun
from swift.contracts.planner import ChosenPlan, ExpectedMemory
from swift.errors import PluginError, SwiftError, UsageError
from swift.installation import pip_install
from swift.plugins.blame import keep_traceback
from swift.plugins.discover import ALLOW_LIST, allowed_plugins
from swift.plugins.load import load
from swift.plugins.return_values import called, wrong

_GROUP = "swift.planners"


def choose(argv: Sequence[str], command: str, processes: int, machines: int) -> ChosenPlan:
    """Return what the one installed planner chooses for a run."""
    entries = allowed_plugins(_GROUP)
    if not entries:
        raise UsageError("No planner is installed.", hint=f"Run: {pip_install('swift-core[plan]')}")
    if len(entries) > 1:
        raise PluginError(
            f"Several planners are installed: {', '.join(map(str, entries))}.",
            hint=f"Allow only one of them, and your other plugins: {ALLOW_LIST}={entries[0].distribution},...",
        )
    choose = load(entries[0]).object.choose
    plan: ChosenPlan = called(entries[0], "choose", choose, ChosenPlan, argv, command, processes, machines)
    return plan


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


def _first(name: str, kind: Any, *arguments: Any) -> Any:
    """Return what the first planner with an optional method returns; None where there is none."""
    for entry in allowed_plugins(_GROUP):
        if (method := getattr(load(entry).object, name, None)) is None:
            continue
        came = called(entry, name, method, kind, *arguments)
        if isinstance(came, ExpectedMemory) and not math.isfinite(came.peak_bytes + came.high_bytes + came.low_bytes):
            raise wrong(entry, name, "finite numbers of bytes", came)
        return came
    return None
