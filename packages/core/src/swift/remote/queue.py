"""A queue of folders to copy to a URL, one after the other, in the background.

Each copy is made by another process (`swift.remote.put`): file systems of fsspec leave threads behind, and a process
with threads cannot fork safely.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from swift.terminal import Say


@dataclass(frozen=True)
class Waiting:
    """A folder in the queue."""

    name: str
    """The folder's name; empty where only the run's files are copied."""
    held: Path | None = None
    """The folder with hard links to its files until it is copied."""


@dataclass
class _Running:
    what: Waiting
    gone: set[str]
    process: subprocess.Popen[str]
    errors: IO[str]


class CopyQueue:
    """Copies folders and the files next to them below a URL, and removes folders there that are no longer wanted.

    A failed copy is reported, and tried again with the next one and at the end, as long as it is wanted.
    """

    def __init__(self, url: str, *, wanted: Callable[[], set[str]], files: Callable[[], list[Path]], say: Say) -> None:
        """Copy below `url`. `wanted` returns the folders that should be there, `files` the files next to them."""
        self.url = url
        self._wanted = wanted
        self._files = files
        self._say = say
        self._waiting: list[Waiting] = []
        self._failed: list[Waiting] = []
        self._running: _Running | None = None
        self._there: set[str] = set()
        """Folders that were copied, and not removed since."""

    @property
    def busy(self) -> bool:
        """Whether a copy is being made or waits."""
        return self._running is not None or bool(self._waiting)

    @property
    def complete(self) -> bool:
        """Whether no copy is missing."""
        return not self.busy and not self._failed

    def add(self, folder: Path, held: Path) -> None:
        """Queue a folder whose files are kept in `held`, after those that failed before."""
        self._waiting = [*self._failed, *self._waiting, Waiting(folder.name, held)]
        self._failed = []
        self.go_on()

    def go_on(self) -> None:
        """Begin the next copy if the current one has ended."""
        if self._running is not None and self._running.process.poll() is not None:
            self._end()
        while self._running is None and self._waiting:
            self._begin(self._waiting.pop(0))

    def finish(self) -> None:
        """Wait for all copies, retry those that failed, and copy the final state of the run's files."""
        self._drain()
        self._waiting, self._failed = [*self._failed, Waiting("")], []
        self._drain()

    def _drain(self) -> None:
        self.go_on()
        while self._running is not None:
            self._running.process.wait()
            self.go_on()

    def _begin(self, what: Waiting) -> None:
        wanted = self._wanted()
        if what.name and what.name not in wanted and any(each.name for each in self._waiting):
            _drop(what)  # it was removed while it waited, and a newer one follows
            return
        gone = self._there - wanted - {what.name}
        task = {
            "folder": None if what.held is None else str(what.held),
            "to": f"{self.url}/{what.name}",
            "files": [str(each) for each in self._files()],
            "files_to": self.url,
            "gone": [f"{self.url}/{each}" for each in sorted(gone)],
        }
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when the process has ended
        # In a session of its own: Ctrl-C stops the run, which then copies its last checkpoint.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "swift.remote.put"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        self._running = _Running(what, gone, process, errors)
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()  # and left open: when it closes, the other process knows that this one is gone
        except BrokenPipeError:
            pass  # the process has ended and reported why

    def _end(self) -> None:
        assert self._running is not None
        running, self._running = self._running, None
        code = running.process.wait()
        if running.process.stdin is not None:
            running.process.stdin.close()
        with running.errors as errors:
            errors.seek(0)
            lines = errors.read().strip().splitlines()
        name = running.what.name
        if code == 0:
            self._there = (self._there | ({name} if name else set())) - running.gone
            _drop(running.what)
            return
        reason = (lines or [f"its process ended with exit code {code}"])[-1]
        self._say(f"{name} was not copied: {reason}" if name else f"The run's files were not copied: {reason}")
        if name and name in self._wanted():
            self._failed.append(running.what)
        else:
            _drop(running.what)


def hold(folder: Path, target: Path) -> Path:
    """Hard-link a folder's files into `target`, which stays when `folder` is removed; return it.

    In file systems without hard links, the files are copied.
    """

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target, copy_function=link)
    return target


def _drop(what: Waiting) -> None:
    if what.held is not None:
        shutil.rmtree(what.held, ignore_errors=True)
