"""A progress bar over an iterable, on a terminal; elsewhere nothing moves."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], description: str, *, on: bool = True, total: int | None = None) -> Iterator[T]:
    """The items; a bar on standard error while they are consumed."""
    if not on or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description, total=total, console=Console(stderr=True), transient=True)
