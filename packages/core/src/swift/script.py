"""Errors for scripts: keywords and torchrun instead of flags, one message without a traceback."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from swift.errors import SHOW_TRACEBACK, SwiftError
from swift.parsing.aliases import flag_named, training_flags

_NPROC = re.compile(r"--nproc(?:[_-]per[_-]node)? (\d+)")
_FLAG = re.compile(r"--([a-z][\w.-]*)(?:[ =](?=[\w./'\"])('[^']*'|[^\s,;:)]*[^\s,;:).]))?")
_COMMAND = re.compile(r"\b(?:swift|pip|python|torchrun) [a-z]")
"""The start of a command to type, whose flags are not reworded."""


@contextmanager
def script_errors() -> Iterator[None]:
    """Reword errors for scripts, and print an uncaught one without its traceback."""
    _show_errors_only()
    try:
        yield
    except SwiftError as error:
        error.message = reworded(error.message, values=False)
        error.args = (error.message,)
        error.hint = None if error.hint is None else reworded(error.hint)
        raise


def reworded(text: str, *, values: bool = True) -> str:
    """Return an error message with keywords instead of flags: `tp=2` for `--tp 2`, or `tp 2` without `values`."""
    command = _COMMAND.search(text)
    prose, commands = (text, "") if command is None else (text[: command.start()], text[command.start() :])
    plain = _FLAG.sub(lambda found: _keyword(found, values), _NPROC.sub(r"\0\1", prose))
    return re.sub(r"\0(\d+)", rf"torchrun --nproc-per-node \1 {Path(sys.argv[0]).name or 'SCRIPT'}", plain) + commands


def _keyword(found: re.Match[str], values: bool) -> str:
    table = training_flags()
    name = table.name(found[1])
    if table.arity(name) is None:
        return found[0]
    if name in table.fields:
        name = flag_named(table.fields[name])
    rest = found[0][2 + len(found[1]) :]
    return f"{name}={_literal(found[2])}" if values and found[2] is not None else name + rest


def _literal(value: str) -> str:
    """Return a value of the command line as a Python literal."""
    if value in ("true", "false"):
        return value.capitalize()
    try:
        float(value)
    except ValueError:
        return value if value.startswith(("'", '"')) else f"'{value}'"
    return value


def _show_errors_only() -> None:
    """Print an uncaught `SwiftError` of a script as one message; interactive sessions keep tracebacks."""
    is_script = hasattr(sys.modules.get("__main__"), "__file__") and not sys.flags.interactive
    if not is_script or os.environ.get(SHOW_TRACEBACK) or sys.excepthook is not sys.__excepthook__:
        return
    sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, SwiftError):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write(f"Error: {error}\n(Set {SHOW_TRACEBACK}=1 to see the traceback.)\n")
