"""`--backend auto` and `--parallel auto`: a planner chooses what they leave open, and says why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from swift.errors import PluginError, SwiftError, UsageError
from swift.terminal import Say, say_nothing

if TYPE_CHECKING:
    from swift.config.parse import Parsed

_AUTO = "auto"


def chosen(args: Sequence[str], verb: str, say: Say) -> list[str]:
    """Return the flags of a run, with what a planner has chosen where that was asked; its reason is said."""
    words = without_auto(args)
    if words == list(args):
        return words
    from swift.planning import counted_processes
    from swift.plugins.blame import failing
    from swift.plugins.discover import list_plugins
    from swift.plugins.load import load

    planners = [entry for entry in list_plugins("swift.planners") if entry.allowed]
    if not planners:
        raise UsageError(
            "Nothing is installed that chooses backend and layout.", hint='Run: pip install "swift-core[plan]"'
        )
    planner = load(planners[0])
    processes, machines = counted_processes(words, os.environ)
    with failing(planner.entry, "choose"):
        plan = planner.object.choose(words, verb, processes, machines)
    flags = getattr(plan, "flags", None)
    if not isinstance(flags, tuple) or not all(isinstance(flag, str) for flag in flags):
        raise PluginError(
            f"{planner.entry} chooses {plan!r}, which is no swift.contracts.ChosenPlan.",
            hint="Name backend and layout yourself, or report it to those who publish it.",
        )
    say(str(plan.reason))
    return [*words, *flags]


def foreseen(parsed: Parsed, processes: int, args: Sequence[str], verb: str) -> str | None:
    """Return what a planner that is installed warns of; None where there is none, or nothing to warn of."""
    from swift.contracts import Run, World
    from swift.plugins.discover import list_plugins
    from swift.plugins.load import load

    for entry in list_plugins("swift.planners"):
        foresee = getattr(load(entry).object, "foresee", None) if entry.allowed else None
        if foresee is None:
            continue
        config = parsed.config
        run = Run(config, parsed.backend_options, config.logging.output, World(size=processes), say_nothing)
        with suppress(SwiftError):  # what cannot be counted is no reason not to try
            warning = foresee(run, list(args), verb)
            return None if warning is None else str(warning)
    return None


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
