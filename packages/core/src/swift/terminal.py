"""Terminal output: lines for the user, progress bars, a status line, and results apart from what plugins print."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO, TypeVar

T = TypeVar("T")

IMPORTS = "Importing torch and transformers"
"""For `waiting`: these take seconds."""

Say = Callable[[str], None]
"""Prints one line for the user: `print_line`, `print_note` or `say_nothing`."""


def print_line(line: str) -> None:
    """Print a line to standard output, and flush."""
    _status.clear()
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def print_note(line: str) -> None:
    """Print a note to standard error, so that it does not mix with the output."""
    _status.clear()
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def say_nothing(_: str) -> None:
    """Print nothing, for processes other than the first and for callers without notes."""


def relative(path: Path) -> Path:
    """Return a path from the working directory, if the path is inside it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def can_redraw(stream: TextIO) -> bool:
    """Return whether the stream's last line can be replaced: it is a terminal, and not in CI."""
    return stream.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def progress(items: Iterable[T], description: str, *, on: bool = True, total: int | None = None) -> Iterator[T]:
    """Yield the items, and show a progress bar on standard error if that is a terminal."""
    if not on or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    with shows_work():
        yield from track(items, description, total=total, console=Console(stderr=True), transient=True)


@contextmanager
def waiting(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show on a terminal what is being waited for, with the elapsed time, until the block ends.

    Only the first process of a run shows it. While a progress bar is shown, the bar shows `work_at_hand` instead.
    """
    stream = stream or sys.stderr
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0" or not can_redraw(stream):
        yield
        return
    with _status.waiting(what, stream):
        yield


def work_at_hand() -> str | None:
    """Return what is being waited for, with the elapsed time, or None."""
    return _status.text()


@contextmanager
def shows_work() -> Iterator[None]:
    """Let the caller's own display show what is being waited for."""
    _status.displays += 1
    _status.clear()
    try:
        yield
    finally:
        _status.displays -= 1


class _Status:
    """The status line at the bottom of a terminal."""

    def __init__(self) -> None:
        self.displays = 0
        """Number of progress bars, which show the work themselves."""
        self._works: list[tuple[str, float, TextIO]] = []
        """(what, start time, stream) of each nested wait, the innermost last."""
        self._lock = threading.RLock()
        self._on: TextIO | None = None
        """The stream that shows the line, if any."""

    @contextmanager
    def waiting(self, what: str, stream: TextIO) -> Iterator[None]:
        work = (what, time.monotonic(), stream)
        over = threading.Event()
        with self._lock:
            is_outermost = not self._works
            self._works.append(work)
            self._show()
        ticker = threading.Thread(target=self._tick, args=(over,), daemon=True) if is_outermost else None
        if ticker is not None:
            ticker.start()
        try:
            yield
        finally:
            with self._lock:
                self._works.remove(work)
                self.clear()
            over.set()
            if ticker is not None:
                ticker.join()

    def text(self) -> str | None:
        if not self._works:
            return None
        what, since, _ = self._works[-1]
        seconds = int(time.monotonic() - since)
        return f"{what} ... {seconds} s" if seconds else f"{what} ..."

    def clear(self) -> None:
        with self._lock:
            if self._on is not None:
                self._on.write("\r\x1b[K")
                self._on.flush()
                self._on = None

    def _tick(self, over: threading.Event) -> None:
        while not over.wait(1.0):
            self._show()

    def _show(self) -> None:
        with self._lock:
            text = self.text()
            if text is not None and not self.displays:
                self._on = self._works[-1][2]
                self._on.write(f"\r\x1b[K{text}")
                self._on.flush()


_status = _Status()


@contextmanager
def result_alone() -> Iterator[Callable[[str], None]]:
    """Yield a function that takes lines of a command's result, which programs read: they are printed at the end.

    All else that is printed meanwhile, by plugins, by C code or by processes that are started, goes to standard error.
    """
    lines: list[str] = []
    printed_to = sys.stdout
    printed_to.flush()
    with _errors_alone(), redirect_stdout(sys.stderr):
        yield lines.append
    printed_to.writelines(f"{line}\n" for line in lines)
    printed_to.flush()


@contextmanager
def _errors_alone() -> Iterator[None]:
    """Let the descriptor of standard output be that of standard error."""
    kept = None
    with suppress(OSError):  # one of the two is closed
        kept = os.dup(1)
        os.dup2(2, 1)
    try:
        yield
    finally:
        if kept is not None:
            with suppress(OSError, ValueError, AttributeError):  # what was written to the stream itself
                sys.__stdout__.flush()  # type: ignore[union-attr]  # None where a program has none
            os.dup2(kept, 1)
            os.close(kept)


def summary_of(trained: int, total: int) -> str:
    """Return how many weights are trained: `1.2 M of 5.2 M weights (23 %)`."""
    percent = 100 * trained / max(1, total)
    return f"{_short(trained)} of {_short(total)} weights ({percent:.{0 if percent >= 10 else 2}f} %)"


def _short(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)
