"""SIGTERM and Ctrl-C: finish the step, save, and say how to resume. A second one ends at once.

Three processes take them differently. One that has not come to its first step just ends (`prompt_stop`). One that
trains notes the request and looks at it between steps (`graceful_stop`). A launcher passes it on to the processes that
it started (`forwarded_signals`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STARTED_BY_SWIFT = "SWIFT_WORKER"
"""Environment variable of the processes that `--nproc` starts. Their launcher speaks to the user, they don't."""

_GRACEFUL = (signal.SIGTERM, signal.SIGINT)
_ONE_WISH = 1.0
"""Seconds in which several signals are one request: `timeout` and some schedulers send two at once."""
_PATIENCE = 5.0
"""Seconds after which a process that was told to stop before its first step is ended, wherever it hangs."""

Handler = Callable[[int, FrameType | None], object]


class Stopped(BaseException):
    """A signal came before there was anything to save. Not an `Exception`: nothing on the way up should handle it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def is_worker() -> bool:
    """Return whether `--nproc` of another process started this one. The launcher's own environment names itself."""
    return os.environ.get(STARTED_BY_SWIFT, own := str(os.getpid())) != own


@contextmanager
def prompt_stop() -> Iterator[None]:
    """Before the first step: a signal raises `Stopped`."""
    stop_requests = _StopRequests()
    # A main thread that waits inside C++ for its peers never gets to `on_signal`.
    last_resort = threading.Timer(_PATIENCE, lambda: _end_at_once(stop_requests.received[0]))
    last_resort.daemon = True

    def react(number: int) -> None:
        count = stop_requests.count(number)
        if count == 1:
            last_resort.start()
        elif count == 2:
            _end_at_once(number)

    raised: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if not raised:
            raised.append(number)
            raise Stopped(number)

    with _watching(react, on_signal):
        try:
            yield
        except Exception:
            # Peers and helpers that got the signal too are gone, and their loss is no news.
            if numbers := raised or stop_requests.received:
                raise Stopped(numbers[0]) from None
            raise
        finally:
            last_resort.cancel()


@contextmanager
def graceful_stop() -> Iterator[list[int]]:
    """In the process that trains: the list gets the number of the first signal; the loop looks at it between steps."""
    stop_requests = _StopRequests()

    def react(number: int) -> None:
        count = stop_requests.count(number)
        # A worker leaves words and a second signal to its launcher.
        if count == 1 and not is_worker():
            _announce(number)
        elif count == 2 and not is_worker():
            _end_at_once(number)

    with _watching(react):
        yield stop_requests.received


@contextmanager
def forwarded_signals() -> Iterator[list[int]]:
    """In the launcher: pass the first signal on to the workers, and kill them at a second."""
    stop_requests = _StopRequests()

    def react(number: int) -> None:
        count, workers = stop_requests.count(number), _children()
        if not workers:
            # Still waiting, inside C++, for launchers on other machines.
            _end_at_once(number)
        elif count == 1:
            _announce(number)
            for worker in workers:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGTERM)
        elif count == 2:
            for worker in workers:
                # With whatever it started: each leads a process group.
                with suppress(ProcessLookupError):
                    os.killpg(worker, signal.SIGKILL)

    with _watching(react):
        yield stop_requests.received


def follow_launcher() -> None:
    """In a worker: take the death of the launcher for SIGTERM, so that no worker is ever left behind.

    It may still save; where that takes a new group of processes it fails, since the launcher held their store.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def say_stopped(number: int) -> None:
    """Print the message of a run that a signal ended before its first step."""
    if _is_first() and not is_worker():
        _say(f"Stopped by {signal.Signals(number).name}.")


_watched = False


@contextmanager
def _watching(react: Callable[[int], None], handler: Handler = lambda number, frame: None) -> Iterator[None]:
    """Call `react` for each signal, in a thread of its own.

    Python runs handlers in the main thread between two bytecodes: a process that waits inside C++, for its peers or
    for the GPU, gets to none of them.
    """
    global _watched
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may handle signals; whoever called us from another one keeps that to itself.
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while number := os.read(reader, 1)[0]:
            if number in _GRACEFUL:
                react(number)

    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    watcher.start()
    outer, _watched = _watched, True
    descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # A signal that was ignored from the start (a job in the background of a script) stays so.
    heeded = [number for number in _GRACEFUL if signal.getsignal(number) != signal.SIG_IGN]
    handlers = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, old in handlers.items():
            signal.signal(number, old)
        signal.set_wakeup_fd(descriptor)
        _watched = outer
        os.write(writer, b"\0")
        watcher.join()
        os.close(reader)
        os.close(writer)


def _forget_in_child() -> None:
    """Forget signals in a forked helper (a process that tokenises), which shares our pipe: they are not the run's."""
    if _watched:
        signal.set_wakeup_fd(-1)
        for number in _GRACEFUL:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_in_child)


class _StopRequests:
    """Counts what the user wants, not signals: several in a moment are one request."""

    def __init__(self) -> None:
        self.received: list[int] = []
        """The first signal, when it has come."""
        self._first = 0.0

    def count(self, number: int) -> int:
        """Return 1 for the first request, 2 for another one, 0 for an echo of the first."""
        if not self.received:
            self._first = time.monotonic()
            self.received.append(number)
            return 1
        return 2 if time.monotonic() - self._first > _ONE_WISH else 0


def _announce(number: int) -> None:
    if _is_first():
        _say(f"{signal.Signals(number).name}: finishing the step and saving. Repeat to exit at once.")


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _say(text: str) -> None:
    """Not by `print`: the main thread may be in the middle of one."""
    os.write(2, f"{text}\n".encode())


def _end_at_once(number: int) -> None:
    say_stopped(number)
    if sys.stdout.isatty():
        # A progress bar hides the cursor.
        os.write(1, b"\x1b[?25h")
    os._exit(128 + number)


def _children() -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process().children()]
