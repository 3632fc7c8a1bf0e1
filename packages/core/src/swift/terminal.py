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
