"""Copies of checkpoints and of the run's files behind a URL, made while the training goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

from swift.checkpoint.copies import place_of
from swift.checkpoint.folders import whole_checkpoints
from swift.contracts import Run, RunSummary
from swift.hookspecs import hookimpl

WAITING = ".copies"
"""Where checkpoints wait in the run's folder until they are copied, by further names of the same files."""


class CopiesObserver:
    """Copies to `checkpoint.copy_to`: each checkpoint once it is whole, with the files beside it, one after the other.

    A checkpoint that the run removes meanwhile is copied nevertheless, and its copy is removed with the next one. A
    copy that fails is said aloud, and the training goes on: the next one is tried anew.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[str, Path | None] | None] = SimpleQueue()
        self._said: SimpleQueue[str] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._copied: set[str] = set()

    @hookimpl
    def swift_run_start(self, run: Run) -> None:
        """Begin to copy what will be saved; what a run before this one has left waiting is removed."""
        shutil.rmtree(run.folder / WAITING, ignore_errors=True)
        self._copied = {folder.name for folder in whole_checkpoints(run.folder).values()}
        self._url = place_of(run.config, run.folder)
        self._folder = run.folder
        self._thread = threading.Thread(target=self._work, name="copies", daemon=True)
        self._thread.start()

    @hookimpl
    def swift_checkpoint_saved(self, run: Run, step: int, folder: Path) -> None:
        """Have a checkpoint copied."""
        self._queue.put((folder.name, _held(folder, run.folder / WAITING / str(step))))
        self._tell(run)

    @hookimpl(trylast=True)  # after those that write the run's files
    def swift_run_end(self, run: Run, summary: RunSummary) -> None:
        """Wait for the copies, and copy the run's files as they are at its end."""
        if self._thread is None:
            return
        if self._thread.is_alive() and not self._queue.empty():
            run.say(f"Waiting for copies to {self._url}")
        self._queue.put(("", None))
        self._queue.put(None)
        self._thread.join()
        self._tell(run)
        shutil.rmtree(run.folder / WAITING, ignore_errors=True)
        if self._copied:
            run.say(f"Copied to {self._url}")

    def _tell(self, run: Run) -> None:
        while not self._said.empty():
            run.say(self._said.get())

    def _work(self) -> None:
        while (asked := self._queue.get()) is not None:
            name, held = asked
            there = {folder.name for folder in whole_checkpoints(self._folder).values()}
            gone = self._copied - there - {name}
            task = {
                "folder": None if held is None else str(held),
                "to": f"{self._url}/{name}",
                "files": [str(each) for each in _files_of(self._folder)],
                "beside": self._url,
                "gone": [f"{self._url}/{each}" for each in sorted(gone)],
            }
            done = subprocess.run(
                [sys.executable, "-m", "swift.remote.put"], input=json.dumps(task), text=True, capture_output=True
            )
            if done.returncode == 0:
                self._copied = (self._copied | ({name} if name else set())) - gone
            else:
                reason = (done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"])[-1]
                what = name or "The run's files"
                self._said.put(f"{what} was not copied: {reason}" if name else f"{what} were not copied: {reason}")
            if held is not None:
                shutil.rmtree(held, ignore_errors=True)


def _held(folder: Path, place: Path) -> Path:
    """Return a folder with the same files, which stays when the checkpoint is removed.

    Where a file system has no second names for files, the files are copied.
    """

    def second_name(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(folder, place, copy_function=second_name))


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a run beside its checkpoints."""
    return sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))
