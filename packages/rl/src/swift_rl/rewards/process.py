"""Processes that run user code, as the run sees them: what they do, what they print, and how they are ended."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.channel import receive, send
from swift_rl.rewards.verdicts import MOST_OUTPUT

MOST_WORKERS = 8
"""Processes of a pool where `reward_workers` names no number."""
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


class Reply(NamedTuple, Generic[Task]):
    """The end of a task. A process that was lost has the reply `{"failure": why}`."""

    task: Task
    reply: dict[str, Any]
    output: str
    seconds: float
    """Time since the task began."""


class Workers(Generic[Task]):
    """The processes of a pool, each in a folder of its own. They are started when they are first needed."""

    def __init__(self, options: RewardOptions) -> None:
        self.alive: list[WorkerProcess[Task]] = []
        self.started = 0
        self._most = options.reward_workers or min(os.cpu_count() or 1, MOST_WORKERS)
        self._memory = options.reward_memory
        self._home: tempfile.TemporaryDirectory[str] | None = None

    @property
    def busy(self) -> list[WorkerProcess[Task]]:
        """Processes with a task."""
        return [worker for worker in self.alive if worker.task is not None]

    @property
    def may_grow(self) -> bool:
        """Whether another process may be started."""
        return len(self.alive) < self._most

    def idle(self) -> list[WorkerProcess[Task]]:
        """Return the processes without a task, after removing those that ended since their last one."""
        self.end([worker for worker in self.alive if worker.task is None and worker.ended is not None])
        return [worker for worker in self.alive if worker.task is None]

    def start(self) -> WorkerProcess[Task]:
        """Start another process."""
        if self._home is None:
            self._home = tempfile.TemporaryDirectory(prefix="swift-rewards-", ignore_cleanup_errors=True)
        self.started += 1
        self.alive.append(WorkerProcess(Path(self._home.name, str(self.started)), self._memory))
        return self.alive[-1]

    def replies(self, lost: str, late: Callable[[Task], str]) -> Iterator[Reply[Task]]:
        """Wait a moment, and yield the tasks that ended. `lost` and `late` say why one has no reply."""
        busy = self.busy
        news = _with_news(busy)
        for worker in busy:
            task, reply = worker.task, worker.reply() if worker in news else {}
            assert task is not None
            if reply:
                worker.task = None
                yield Reply(task, reply, worker.output(), time.monotonic() - worker.began)
                continue
            if reply is None or worker.ended is not None:
                failure = f"{lost} {worker.bury()}"
            elif time.monotonic() > worker.deadline:
                worker.kill()
                failure = late(task)
            else:
                continue
            self.alive.remove(worker)
            yield Reply(task, {"failure": failure}, worker.kept(), time.monotonic() - worker.began)

    def end(self, workers: Sequence[WorkerProcess[Task]]) -> None:
        """Kill processes."""
        for worker in workers:
            worker.kill()
            self.alive.remove(worker)

    def close(self) -> None:
        """Kill all processes and remove their folders."""
        self.end([*self.alive])
        if self._home is not None:
            self._home.cleanup()
            self._home = None


def ask_once(message: Mapping[str, Any]) -> dict[str, Any]:
    """Start a process for one task, and return its reply, or why there is none, with its `output`."""
    workers: Workers[Mapping[str, Any]] = Workers(RewardOptions(reward_memory=0))
    try:
        workers.start().give(message, message, LOADING)
        late = f"it took longer than {LOADING:g} s"
        while True:
            for _, reply, output, _ in workers.replies("the process that ran it", lambda _: late):
                return {**reply, "output": output}
    finally:
        workers.close()


def _with_news(busy: Sequence[WorkerProcess[Task]]) -> list[WorkerProcess[Task]]:
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
