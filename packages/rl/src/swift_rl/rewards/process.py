"""One process that computes rewards, as the run sees it: what it is doing, what it printed, and how it is ended."""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from swift_rl.rewards.channel import receive, send
from swift_rl.rewards.verdicts import MOST_OUTPUT

LOADING = 180.0
"""Seconds that a process may take to start and to import a reward, if its calls may not take longer than that."""
_DYING = 10.0
"""Seconds between the end of a process's channel and its own."""

_REPLY_TIMEOUT = 5.0
"""Seconds for the rest of a reply that has begun to arrive."""
_TICK = 0.25
"""Seconds after which it is looked whether a process is gone without a word."""

Task = TypeVar("Task")


class WorkerProcess(Generic[Task]):
    """A process of its own session with a channel for tasks, a pipe for what it prints and nothing to read."""

    def __init__(self, folder: Path, memory: float) -> None:
        folder.mkdir(parents=True)
        self.channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "swift_rl.rewards.worker", str(theirs.fileno()), str(memory)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd=folder,
                env=_environment(),
            )
        assert self._process.stdout is not None
        self.printed = self._process.stdout.fileno()
        os.set_blocking(self.printed, False)
        self.task: Task | None = None
        self.began = 0.0
        self.deadline = 0.0
        self._seconds = 0.0
        self._kept = b""
        self._dropped = 0

    def give(self, task: Task, message: Mapping[str, Any], seconds: float) -> None:
        """Begin a task, which may take so many seconds once its reward is loaded."""
        self.drain()
        self.task, self._kept, self._dropped, self._seconds = task, b"", 0, seconds
        self.began = time.monotonic()
        self.deadline = self.began + max(LOADING, seconds)
        try:
            send(self.channel, {**message, "seconds": seconds})
        except OSError:  # it ended, which `reply` reports
            return

    def reply(self) -> dict[str, Any] | None:
        """Return the reply to the task, an empty one when its reward is loaded, None if the process ended."""
        self.channel.settimeout(max(self.deadline - time.monotonic(), _REPLY_TIMEOUT))
        message: Any = receive(self.channel)
        self.channel.settimeout(None)
        if not isinstance(message, dict):  # its code wrote into the channel
            return None
        if message == {"loaded": True}:
            self.began = time.monotonic()
            self.deadline = self.began + self._seconds
            return {}
        return message

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message without a reply to a process without a task."""
        with suppress(OSError):  # it is dead, which the next task finds out
            send(self.channel, message)

    @property
    def late(self) -> bool:
        """Whether the task takes longer than it may."""
        return time.monotonic() > self.deadline

    def readable(self, seconds: float) -> bool:
        """Wait so long for a reply or the end of the process; return whether there is one."""
        return bool(select.select([self.channel], [], [], seconds)[0])

    def drain(self) -> None:
        """Take what was printed out of the pipe, and keep its beginning."""
        while True:
            try:
                part = os.read(self.printed, 1 << 16)
            except OSError:  # nothing there now
                return
            if not part:
                return
            room = MOST_OUTPUT - len(self._kept)
            self._kept += part[: max(room, 0)]
            self._dropped += max(len(part) - max(room, 0), 0)

    def output(self) -> str:
        """Return the beginning of what the task printed, and say how much more there was."""
        self.drain()
        return self.kept()

    def kept(self) -> str:
        """Return what was taken out of the pipe."""
        text = self._kept.decode("utf-8", "replace")
        return f"{text} ... and {self._dropped} bytes more" if self._dropped else text

    @property
    def ended(self) -> str | None:
        """How the process ended, in words; None while it lives."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended itself with the exit code {code}"

    def bury(self) -> str:
        """Return how a process ended that closed its channel, and end what it left behind."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DYING)
        ended = self.ended or "closed its channel to the run"
        self.kill()
        return ended

    def kill(self) -> None:
        """End the process and whatever it started."""
        self.drain()
        with suppress(ProcessLookupError, PermissionError):  # all are gone
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.channel.close()


def with_news(busy: Sequence[WorkerProcess[Task]]) -> list[WorkerProcess[Task]]:
    """Wait a moment or until a process has a reply; collect what all print meanwhile."""
    found = []
    with selectors.DefaultSelector() as selector:
        for worker in busy:
            selector.register(worker.channel, selectors.EVENT_READ, (worker, True))
            selector.register(worker.printed, selectors.EVENT_READ, (worker, False))
        soonest = min((worker.deadline for worker in busy), default=0.0) - time.monotonic()
        for key, _ in selector.select(min(max(soonest, 0.0), _TICK)):
            worker, is_channel = key.data
            if is_channel:
                found.append(worker)
            else:
                worker.drain()
    return found


def _environment() -> dict[str, str]:
    """Return the variables of a process that finds the modules that this one finds.

    With one thread each, several processes share the cores best.
    """
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8:backslashreplace"}
