"""Copies of checkpoints and of the run's files to a URL, made during training."""

from __future__ import annotations

import shutil
from pathlib import Path

from swift.checkpoint.copies import copy_url
from swift.checkpoint.folders import last_checkpoint, whole_checkpoints
from swift.contracts import Run, RunSummary, StepRecord
from swift.hookspecs import hookimpl
from swift.remote.queue import CopyQueue, hold

WAITING = ".copies"
"""The folder in the run's folder with hard links to checkpoints that wait to be copied."""


class CopiesObserver:
    """Copies each complete checkpoint and the run's files to `checkpoint.copy_to`, one after the other.

    Checkpoints that the run removes are removed there with the next copy. Of those that wait, only the newest is
    copied.
    """

    def __init__(self) -> None:
        self._queue: CopyQueue | None = None

    @hookimpl
    def swift_run_start(self, run: Run) -> None:
        """Begin with the checkpoint that the run resumes from, unless it is there already."""
        shutil.rmtree(run.folder / WAITING, ignore_errors=True)
        self._queue = CopyQueue(
            copy_url(run.config, run.folder),
            wanted=lambda: {folder.name for folder in whole_checkpoints(run.folder).values()},
            files=lambda: _files_of(run.folder),
            say=run.say,
        )
        if (last := last_checkpoint(run.folder)) is not None:
            self._add(run, last)

    @hookimpl
    def swift_step_end(self, run: Run, record: StepRecord) -> None:
        """Begin the next copy where one has ended."""
        if self._queue is not None:
            self._queue.go_on()

    @hookimpl
    def swift_checkpoint_saved(self, run: Run, step: int, folder: Path) -> None:
        """Have a checkpoint copied."""
        self._add(run, folder)

    @hookimpl(trylast=True)  # after those that write the run's files
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        """Wait for the copies, and copy the run's files as they are at its end."""
        if self._queue is None:
            return
        if self._queue.busy:
            run.say(f"Waiting for copies to {self._queue.url}")
        self._queue.finish()
        done = "Copied the run to" if self._queue.complete else "Could not copy all of the run to"
        run.say(f"{done} {self._queue.url}")
        shutil.rmtree(run.folder / WAITING, ignore_errors=True)

    def _add(self, run: Run, folder: Path) -> None:
        if self._queue is None:
            return
        try:
            held = hold(folder, run.folder / WAITING / folder.name)
        except OSError as problem:
            run.say(f"{folder.name} was not copied: {problem.strerror or problem}")
            return
        self._queue.add(folder, held)


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a run, without its checkpoints."""
    return sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))
