"""Folders that wait to be copied to a URL, one after the other, while this process does something else.

Each copy is made by a process of its own (`swift.remote.put`), without a thread in this one: file systems of fsspec
leave threads behind, next to which processes cannot be forked safely.
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
from typing import IO, Any

from swift.terminal import Say


@dataclass(frozen=True)
class Waiting:
    """A folder that is to be copied."""

    name: str
    """Of the folder; empty for one that is not there, where only the files beside are copied."""
    held: Path | None = None
    """Where its files are kept until then."""


@dataclass
class _Running:
    what: Waiting
    gone: set[str]
    process: subprocess.Popen[str]
    errors: IO[str]


class CopyQueue:
    """Copies folders below a URL, with the files beside them, and removes there what is no longer wanted.

    A copy that fails is said aloud, and tried anew with the next one and at the end, as long as it is wanted.
    """

    def __init__(self, url: str, *, wanted: Callable[[], set[str]], files: Callable[[], list[Path]], say: Say) -> None:
        """Copy below `url`. `wanted` returns the folders that should be there, `files` what is copied beside them."""
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
        """Whether a copy is being made, or waits for it."""
        return self._running is not None or bool(self._waiting)

    @property
    def complete(self) -> bool:
        """Whether no copy is missing."""
        return not self.busy and not self._failed

    def add(self, folder: Path, held: Path) -> None:
        """Have a folder copied, whose files are kept in `held` until then; before it, what could not be before."""
        self._waiting = [*self._failed, *self._waiting, Waiting(folder.name, held)]
        self._failed = []
        self.go_on()

    def go_on(self) -> None:
        """Look whether the copy that is being made has ended, and begin the next one if so."""
        if self._running is not None and self._running.process.poll() is not None:
            self._end()
        while self._running is None and self._waiting:
            self._begin(self._waiting.pop(0))

    def finish(self) -> None:
        """Wait for all copies, try those that failed once more, and copy the files beside as they are at the end."""
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
            "beside": self.url,
            "gone": [f"{self.url}/{each}" for each in sorted(gone)],
        }
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when the process has ended
        # In a session of its own: Ctrl-C of the terminal is the run's, which has a last checkpoint copied after it.
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
            process.stdin.flush()  # and left open: its end is how the other process learns that this one is gone
        except BrokenPipeError:
            pass  # it has ended, and says why

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
        reason = (lines or [f"its process ended with {code}"])[-1]
        self._say(f"{name} was not copied: {reason}" if name else f"The run's files were not copied: {reason}")
        if name and name in self._wanted():
            self._failed.append(running.what)
        else:
            _drop(running.what)


def hold(folder: Path, place: Path) -> Path:
    """Return a folder with the same files, which stays when the first one is removed.

    Where a file system has no second names for files, the files are copied.
    """

    def second_name(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    shutil.rmtree(place, ignore_errors=True)
    made: Any = shutil.copytree(folder, place, copy_function=second_name)
    return Path(made)


def _drop(what: Waiting) -> None:
    if what.held is not None:
        shutil.rmtree(what.held, ignore_errors=True)
