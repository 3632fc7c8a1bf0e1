"""Terminal output: lines for the user, and a progress bar over an iterable."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

Say = Callable[[str], None]
"""Tells the user one line: `print_line`, `print_note` or `say_nothing`."""


def print_line(line: str) -> None:
    """Print a line of a command's own output, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def print_note(line: str) -> None:
    """Print a line about the work to standard error, so that it does not mix with output that somebody reads on."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def say_nothing(_: str) -> None:
    """Print nothing: for processes other than the first, and for callers that do not want to hear."""


def progress(items: Iterable[T], description: str, *, on: bool = True, total: int | None = None) -> Iterator[T]:
    """Yield the items; while they are consumed, a bar moves on standard error if that is a terminal."""
    if not on or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description, total=total, console=Console(stderr=True), transient=True)


def summary_of(trained: int, total: int) -> str:
    """Describe how many weights are trained: `1.2 M of 5.2 M weights (23 %)`."""
    percent = 100 * trained / max(1, total)
    return f"{_short(trained)} of {_short(total)} weights ({percent:.{0 if percent >= 10 else 2}f} %)"


def _short(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)
