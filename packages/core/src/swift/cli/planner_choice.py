"""`--backend auto` and `--parallel auto`: an installed planner chooses, and prints its reason."""

from __future__ import annotations

import os
from collections.abc import Sequence

from swift.terminal import Say

_AUTO = "auto"


def chosen(args: Sequence[str], command: str, say: Say) -> list[str]:
    """Return the flags of a run with a planner's choice for each `auto`; print its reason."""
    explicit = without_auto(args)
    if explicit == list(args):
        return explicit
    from swift.planning import counted_processes
    from swift.plugins import planners

    processes, machines = counted_processes(explicit, os.environ)
    plan = planners.choose(explicit, command, processes, machines)
    say(plan.reason)
    return [*explicit, *plan.flags]


def without_auto(args: Sequence[str]) -> list[str]:
    """Return the flags of a run without `--backend auto` and `--parallel auto`."""
    kept: list[str] = []
    for arg in args:
        name, _, value = arg.partition("=")
        if value == _AUTO and name in ("--backend", "--parallel"):
            continue
        if arg == _AUTO and kept and kept[-1] in ("--backend", "--parallel"):
            kept.pop()
            continue
        kept.append(arg)
    return kept
