"""Nothing of what was started is left, however swift ends: with small commands instead of a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from served import all_gone

from swift_infer.servers import guard
from swift_infer.servers.process import Ended, Server

# A server with an engine in a session of its own, which has a worker, as daemons do; both outlive their parents. The
# worker gives itself a title, as those of vLLM do.
SERVER = """
import os, signal, subprocess, sys, time
if len(sys.argv) > 1 and sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if "stubborn" in sys.argv else "pass"
title = "sys.path.append(PACKAGES); import setproctitle; setproctitle.setproctitle('worker')"
worker = f"import signal, sys, time; {deaf}; {title}; time.sleep(600)"
engine = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-S', '-c', {worker!r}]); time.sleep(600)"
subprocess.Popen([sys.executable, "-S", "-c", engine], start_new_session=True)
if sys.argv[1:] == ["ends"]:
    time.sleep(1)
    sys.exit(7)
time.sleep(600)
""".replace("PACKAGES", repr(sysconfig.get_path("platlib")))
OWNER = """
import subprocess, sys, time
words = [sys.executable, "-I", "-S", sys.argv[1], "2", sys.executable, "-S", *sys.argv[2:]]
subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""


@pytest.fixture
def server(tmp_path: Path) -> Path:
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    return file


@pytest.fixture
def owner(server: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that started a guard, which started the server."""
    process = subprocess.Popen([sys.executable, "-S", "-c", OWNER, guard.__file__, str(server)])
    yield process
    process.kill()
    process.wait()


def family(pid: int, at_least: int) -> list[psutil.Process]:
    """All that a process started, once there are so many."""
    end = time.monotonic() + 60
    while len(found := psutil.Process(pid).children(recursive=True)) < at_least:
        assert time.monotonic() < end, found
        time.sleep(0.05)
    time.sleep(0.3)  # the last one is still starting up
    return found


def guarded(server: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", guard.__file__, "2", sys.executable, "-S", str(server), *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_child_processes_end_with_parent(owner: subprocess.Popen[bytes], number: int) -> None:
    started = family(owner.pid, 4)
    os.kill(owner.pid, number)
    owner.wait()
    assert all_gone(started, within=30), started


def test_a_guard_that_is_killed_takes_the_server_along(server: Path) -> None:
    process = guarded(server)
    asked, *others = family(process.pid, 3)
    process.kill()
    process.wait()
    gone = all_gone([asked], within=30)
    for each in others:  # of which a guard that is killed knows nothing any more
        each.kill()
    assert gone


def test_what_a_killed_guard_leaves_is_ended_by_swift(server: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    command = [sys.executable, "-S", str(server), "stubborn"]
    with Server(command, os.environ, tmp_path / "log", str, verbose=False) as running:
        (process,) = psutil.Process().children()
        started = family(process.pid, 3)
        process.kill()
        with pytest.raises(Ended):
            running.wait()
        assert not all_gone(started, within=1)
    assert all_gone(started, within=1)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_server_that_does_not_want_to_end_is_ended(server: Path) -> None:
    process = guarded(server, "stubborn")
    started = family(process.pid, 3)
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGKILL
    assert all_gone(started, within=30)


def test_a_second_wish_is_granted_at_once(server: Path) -> None:
    command = [sys.executable, "-I", "-S", guard.__file__, "600", sys.executable, "-S", str(server), "stubborn"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    started = family(process.pid, 3)
    process.terminate()
    time.sleep(0.3)
    process.terminate()
    process.wait(60)
    assert all_gone(started, within=30)


def test_what_a_server_leaves_behind_when_it_ends_is_ended_too(server: Path) -> None:
    process = guarded(server, "ends")
    started = family(process.pid, 3)
    assert process.wait(60) == 7
    assert all_gone(started, within=30)
