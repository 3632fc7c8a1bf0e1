"""Standard output for the result of a command, which programs read: what plugins print goes to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress


@contextmanager
def result_alone() -> Iterator[Callable[[str], None]]:
    """Yield a function that takes lines of the result, which are printed at the end.

    All else that is printed meanwhile, by Python, by C code or by processes that are started, goes to standard error.
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
