"""Runs of online learning that are killed: SIGKILL, in each of the phases of a round."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from processes import on_processes

from swift_rl.rounds import base
from swift_rl.rounds.files import RolloutLog
from swift_rl.rounds.schedule import RolloutSchedule
from swift_rl.rounds.scoring import RewardScorer
from swift_testing.crew import Lost

PHASES: dict[str, tuple[object, str, int, bool]] = {
    "drawing": (RolloutLog, "add", 21, False),
    "scoring": (RewardScorer, "score", 1, True),
    "before the file": (base, "write_round", 1, True),
    "after the file": (base, "write_round", 1, False),
    "between steps": (RolloutSchedule, "batch", 3, True),
}
"""Where the second of two rounds of 16 completions is interrupted: the call, how many calls succeed, and whether the
next one is prevented (True) or still happens (False)."""


def assert_killed(phase: str, run: Callable[[], object], *, lag: int = 0) -> None:
    """Let a run be killed in a process of its own, which is forked from this one."""
    owner, name, count, before = PHASES[phase]
    well = count + 16 * lag if phase == "drawing" else count

    def ends() -> None:
        setattr(owner, name, _killing(getattr(owner, name), well, before=before))
        run()

    ((completion,),) = on_processes(1, ends)
    assert isinstance(completion, Lost), f"it was not killed while {phase}: {completion}"


def _killing(function: Callable[..., Any], well: int, *, before: bool) -> Callable[..., Any]:
    calls = [0]

    def counting(*arguments: Any, **more: Any) -> Any:
        calls[0] += 1
        last = calls[0] > well
        if last and before:
            os.kill(os.getpid(), signal.SIGKILL)
        came = function(*arguments, **more)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return came

    return counting
