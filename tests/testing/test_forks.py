"""Forks wait for threads that are on their way out."""

from __future__ import annotations

import _thread
import hashlib
import os

import pytest

from swift_testing import forks


def test_a_fork_waits_for_a_thread_that_python_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 60.0)
    begun, ended = _thread.allocate_lock(), []
    begun.acquire()

    def work() -> None:
        data = bytes(1 << 26)
        begun.release()
        ended.append(hashlib.sha256(data).digest())  # which runs without the interpreter's lock

    _thread.start_new_thread(work, ())  # as threads are that have ended for Python, and not yet for the system
    begun.acquire()
    child = os.fork()
    if child == 0:
        os._exit(0 if ended else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
