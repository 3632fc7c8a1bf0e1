"""Runs a command, and sees to it that nothing of it is left when whoever asked for it is gone.

Started as a script by its path, with nothing but the standard library: `guard.py GRACE COMMAND...`. Standard input is
the lifeline: the other end is held by the process that asked, and closes whatever way that process ends, SIGKILL
included. The guard is the ancestor of all that the command starts, and inherits what loses its parent (Linux), so that
it finds processes that moved to sessions of their own as well.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LAST_SECONDS = 5.0
"""What is left when the command itself has ended gets so long to end too."""


def main(grace: float, command: list[str]) -> int:
    """Run the command until it or this process ends; returns its exit code."""
    stop_requests: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: stop_requests.append(received))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    awake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    os.set_blocking(awake, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    server = _start(command)
    code: int | None = None
    lifeline = [0]
    while code is None and not stop_requests:
        ready, _, _ = select.select([*lifeline, awake], [], [])
        _drain(awake)
        if 0 in ready and not os.read(0, 1):
            stop_requests.append(signal.SIGTERM)
        code = _reap(server)
    if code is None:
        _send(signal.SIGTERM, [server])
        end = time.monotonic() + grace
        while code is None and time.monotonic() < end and len(stop_requests) < 2:
            select.select([awake], [], [], 0.1)
            _drain(awake)
            code = _reap(server)
    _clear(server)
    return 128 + signal.SIGKILL if code is None else code


def _start(command: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # should the guard itself be killed
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(command[0], command)
    finally:
        os._exit(127)


def _reap(server: int) -> int | None:
    """Collect whatever ended; the server's exit code as a shell has it, if it did."""
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if ended == 0:
            return code
        if ended == server:
            exit_code = os.waitstatus_to_exitcode(status)
            code = exit_code if exit_code >= 0 else 128 - exit_code


def _clear(server: int) -> None:
    """End what is left: asked first, then not."""
    _send(signal.SIGTERM, _descendants() - {server})
    if sys.platform != "linux":
        os.killpg(0, signal.SIGTERM)  # nearly all of it is in this group; this process takes it as one more wish
    end = time.monotonic() + LAST_SECONDS
    while (left := _descendants()) and time.monotonic() < end and server not in left:
        time.sleep(0.05)
        _reap(server)
    while left := _descendants():
        _send(signal.SIGKILL, left)
        time.sleep(0.05)
        _reap(server)


def _descendants() -> set[int]:
    parents = {}
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - starts faster so
    except OSError:  # no Linux
        return set()
    for number in numbers:
        try:
            with open(f"/proc/{number}/stat") as file:  # noqa: PTH123
                parents[number] = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def _send(number: int, processes: set[int] | list[int]) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


def _drain(pipe: int) -> None:
    try:
        while os.read(pipe, 512):
            pass
    except BlockingIOError:
        pass


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the process group has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
