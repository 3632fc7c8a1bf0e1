"""`--backend auto` and `--parallel auto`: a planner chooses what they leave open, and says why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from swift.terminal import Say, say_nothing

if TYPE_CHECKING:
    from swift.config.parse import Parsed

_AUTO = "auto"


def chosen(args: Sequence[str], command: str, say: Say) -> list[str]:
    """Return the flags of a run, with what a planner has chosen where that was asked; its reason is said."""
    words = without_auto(args)
    if words == list(args):
        return words
    from swift.planning import counted_processes
    from swift.plugins import planners

    processes, machines = counted_processes(words, os.environ)
    plan = planners.choose(words, command, processes, machines)
    say(plan.reason)
    return [*words, *plan.flags]


def foreseen(parsed: Parsed, processes: int, args: Sequence[str], command: str) -> str | None:
    """Return what a planner that is installed warns of; None where there is none, or nothing to warn of."""
    from swift.contracts import Run, World
    from swift.plugins import planners

    config = parsed.config
    run = Run(config, parsed.backend_options, config.logging.output, World(size=processes), say_nothing)
    return planners.foreseen(run, args, command)


def without_auto(args: Sequence[str]) -> list[str]:
    """Return the words of a run without those that leave something to a planner."""
    kept: list[str] = []
    for word in args:
        name, _, value = word.partition("=")
        if value == _AUTO and name in ("--backend", "--parallel"):
            continue
        if word == _AUTO and kept and kept[-1] in ("--backend", "--parallel"):
            kept.pop()
            continue
        kept.append(word)
    return kept
