"""Actions on a run, including those started in a terminal: stop, resume, use its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swift.checkpoint import whole_checkpoints
from swift.errors import SwiftError, UsageError
from swift.forms import resume_argv
from swift.train import CONFIG_FILE
from swift_ui.acting.jobs import JobStore, RunningJob, end_process
from swift_ui.looking.holder import holder_of
from swift_ui.looking.view import arguments, configuration


@dataclass(frozen=True)
class RunActions:
    """Actions that a run allows now."""

    alive: bool
    """Whether it is training on this machine."""
    job: RunningJob | None
    """The dashboard's newest command for it, if any."""
    checkpoints: tuple[Path, ...]
    """Newest first."""
    resume: tuple[str, ...]
    """Arguments of `swift` that resume it; empty if it cannot be resumed."""

    @classmethod
    def of(cls, folder: Path, jobs: JobStore, *, completed: bool = False) -> RunActions:
        """Return the actions of the run in a folder; a `completed` run cannot be resumed."""
        holder = holder_of(folder)
        alive = holder is not None and holder.alive is True
        job = jobs.of_run(folder)
        alive = alive or (job is not None and job.alive)
        checkpoints = tuple(reversed(whole_checkpoints(folder).values()))
        resume: list[str] = []
        if not alive and not completed and checkpoints and (folder / CONFIG_FILE).is_file():
            optimizer_state = _has_optimizer_state(folder)
            resume = resume_argv(folder, checkpoints[0], processes=_processes(folder), optimizer_state=optimizer_state)
        return cls(alive, job, checkpoints, tuple(resume))


def stop_run(folder: Path, jobs: JobStore, *, now: bool) -> None:
    """Stop a run: through the dashboard's command if it has one, else through the process that holds its lock."""
    job = jobs.of_run(folder)
    if job is not None and job.alive:
        jobs.stop(job, now=now)
        return
    holder = holder_of(folder)
    if holder is None or not holder.alive:
        raise UsageError("This run is not training on this machine.")
    end_process(holder.process, now=now)


def _processes(folder: Path) -> int:
    """Return how many processes the run had, if all were on one machine."""
    environment = arguments(folder).get("environment")
    processes = environment.get("processes") if isinstance(environment, dict) else None
    return processes if type(processes) is int else 1


def _has_optimizer_state(folder: Path) -> bool:
    try:
        return bool(configuration(folder)["keys"].get("checkpoint.optimizer_state", True))
    except SwiftError:
        return True
