"""Forks that wait for ending threads: a lock that one holds at a fork is never released in the new process.

A thread that ends gives MKL's memory back under all locks of its allocator, after Python has let go of it. A process
that is forked in that moment waits in its first product of matrices, without end.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")
_LOOKS = 2
"""Looks one after the other that find no such thread: one may be between two of its steps."""
_BETWEEN = 0.0005
PATIENCE = 2.0
"""Seconds; a thread of another library may have work for longer, and holds nothing of MKL's."""


def await_ending_threads() -> None:
    """Wait until none of this process's threads runs that Python does not know (any more)."""
    end, quiet = time.monotonic() + PATIENCE, 0
    while quiet < _LOOKS and time.monotonic() < end:
        quiet = 0 if any(map(_runs, _unknown_tasks())) else quiet + 1
        time.sleep(_BETWEEN)


def _unknown_tasks() -> set[int]:
    known = {thread.native_id for thread in threading.enumerate()}
    tasks = {int(task.name) for task in _TASKS.iterdir()} if _TASKS.is_dir() else set()
    return tasks - known - {threading.get_native_id()}


def _runs(task: int) -> bool:
    with suppress(OSError):  # it is gone
        return (_TASKS / str(task) / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"R"
    return False


os.register_at_fork(before=await_ending_threads)
