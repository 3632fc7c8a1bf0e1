"""Actions on a run, also on one that a terminal has started: stop it, go on with it, use what it has trained."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from swift.errors import SwiftError, UsageError
from swift.forms import resume_argv
from swift.runs import CONFIG_FILE, holder_of
from swift_ui.acting.jobs import JobBook, StartedCommand, end_process
from swift_ui.looking.view import arguments, configuration

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class RunActions:
    """Actions on a run that make sense now."""

    alive: bool
    """Whether it trains on this machine."""
    job: StartedCommand | None
    """The command that the page has started for it, if any."""
    checkpoints: tuple[Path, ...]
    """The newest first."""
    resume: tuple[str, ...]
    """What is typed after `swift` to go on with it; nothing where it cannot."""

    @classmethod
    def of(cls, folder: Path, jobs: JobBook, *, completed: bool = False) -> RunActions:
        """Look at a run's folder; one that is `completed` has nothing left to go on with."""
        holder = holder_of(folder)
        alive = holder is not None and holder.alive is True
        job = jobs.of_run(folder)
        alive = alive or (job is not None and job.alive)
        checkpoints = tuple(checkpoints_of(folder))
        resume = (
            ()
            if alive or completed or not checkpoints or not (folder / CONFIG_FILE).is_file()
            else _resume(folder, checkpoints)
        )
        return cls(alive, job, checkpoints, resume)


def checkpoints_of(folder: Path) -> list[Path]:
    """Return the whole checkpoints of a run, the newest first."""
    found = [(int(name[1]), each) for each in folder.glob("checkpoint-*") if (name := _CHECKPOINT.fullmatch(each.name))]
    return [each for _, each in sorted(found, reverse=True) if (each / "manifest.json").is_file()]


def stop_run(folder: Path, jobs: JobBook, *, now: bool) -> None:
    """Stop a run, whoever started it: by its command where the page knows it, else by the process that locks it."""
    job = jobs.of_run(folder)
    if job is not None and job.alive:
        jobs.stop(job, now=now)
        return
    holder = holder_of(folder)
    if holder is None or not holder.alive:
        raise UsageError("This run does not train on this machine (any more).")
    end_process(holder.process, now=now)


def _resume(folder: Path, checkpoints: tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(
        resume_argv(folder, checkpoints[0], processes=_processes(folder), optimizer_state=_has_optimizer_state(folder))
    )


def _processes(folder: Path) -> int:
    """Return how many processes the run had, where all of them were on one machine."""
    environment = arguments(folder).get("environment")
    processes = environment.get("processes") if isinstance(environment, dict) else None
    return processes if type(processes) is int else 1


def _has_optimizer_state(folder: Path) -> bool:
    try:
        return bool(configuration(folder)["keys"].get("checkpoint.optimizer_state", True))
    except SwiftError:
        return True
