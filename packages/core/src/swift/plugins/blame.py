"""Whose code failed: an error of a plugin becomes one message that names it, and its traceback goes into a file.

`blaming` surrounds a call into a plugin whose errors the run handles by their type (out of memory, a full disk, the
loss of a peer): the error keeps its type and is marked with the plugin, for `explained` at the end.
`failing` surrounds the other calls: an error becomes a `PluginError` at once.
"""

from __future__ import annotations

import os
import re
import select
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from swift.errors import PluginError, SwiftError
from swift.installation import pip_install
from swift.plugins.entry import PluginEntry, normal_name, printable
from swift.plugins.known import PACKAGES

_MARK = "_swift_blame"
_LONGEST = 600
"""Characters that are shown of an error's own message."""


@dataclass(frozen=True)
class Blame:
    """The plugin that raised an error, and the function in which it did."""

    entry: PluginEntry
    function: str
    """The hook, or the method of an objective or an engine."""

    def __str__(self) -> str:
        return f"the {self.entry} in {self.function}"


@contextmanager
def blaming(entry: PluginEntry, function: str) -> Iterator[None]:
    """Mark what is raised inside with the plugin and its function."""
    try:
        yield
    except BaseException as cause:
        mark(cause, entry, function)
        raise


@contextmanager
def failing(entry: PluginEntry, function: str) -> Iterator[None]:
    """Raise `PluginError` for whatever is raised inside, except errors for the user (`SwiftError`) and Ctrl-C."""
    try:
        yield
    except BaseException as cause:
        mark(cause, entry, function)
        failure = explained(cause)
        if failure is None or failure is cause:
            raise
        raise failure from cause


def mark(cause: BaseException, entry: PluginEntry, function: str) -> None:
    """Note which plugin raised an error; the innermost plugin stays the one that is blamed.

    An exception that other code would take for the end of a loop or of the process, such as `SystemExit`, is raised as
    a `PluginError` at once. An interruption by the user passes.
    """
    if isinstance(cause, SwiftError) or interrupts(cause):
        return
    if isinstance(cause, StopIteration | StopAsyncIteration) or not isinstance(cause, Exception):
        raise failure_of(Blame(entry, function), cause) from cause
    cause.__dict__.setdefault(_MARK, Blame(entry, function))


def interrupts(cause: BaseException) -> bool:
    """Return whether this ends the process or the work: Ctrl-C or another signal, a reader that has gone.

    A pipe that is broken may be a plugin's own, to a process that it has started.
    """
    from swift.processes.signals import Stopped

    return isinstance(cause, KeyboardInterrupt | Stopped) or (isinstance(cause, BrokenPipeError) and _reader_has_gone())


def _reader_has_gone() -> bool:
    """Return whether the reader of this process's output has closed it."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # none, closed, or a stand-in
            poll.register(stream.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def blamed(cause: BaseException) -> Blame | None:
    """Return the plugin that raised an error, where that was one."""
    found = cause.__dict__.get(_MARK)
    return found if isinstance(found, Blame) else None


def explained(cause: BaseException) -> SwiftError | None:
    """Return the error to show for what a plugin raised; None where no plugin is to blame."""
    if isinstance(cause, SwiftError):
        return cause
    blame = blamed(cause)
    return None if blame is None else failure_of(blame, cause)


def failure_of(blame: Blame, cause: BaseException) -> PluginError:
    """Return the message about an error that a plugin raised. To be raised from its cause."""
    failure = PluginError(
        f"{blame.entry} failed in {blame.function}: {error_line(cause)}", hint=if_not_yours(blame.entry)
    )
    failure.traceback_of = cause
    return failure


def if_not_yours(entry: PluginEntry) -> str:
    """Return the hint for a user of a plugin that someone else wrote, or of one of this project's own."""
    if not entry.distribution:
        return f"Correct {entry.target}."
    if normal_name(entry.distribution) in PACKAGES:
        return "This is an internal error of swift: report it to its developers, with the command and this message."
    return f"Report it to the authors of {entry.distribution}, or upgrade it: {upgrade(entry)}"


def upgrade(entry: PluginEntry) -> str:
    """Return the command that upgrades a plugin and its dependencies."""
    return pip_install(entry.distribution, upgrade=True)


def error_line(cause: BaseException) -> str:
    """Return type and message of an error in one line that ends in a full stop."""
    try:
        text = " ".join(str(cause).split())
    except BaseException:
        text = "its message cannot be shown"
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ..."
    kind = type(cause).__name__
    line = printable(f"{kind}: {text}" if text else kind)
    return line if line[-1] in ".!?" else f"{line}."


def keep_traceback(error: SwiftError, folder: Path | None = None, *, name: str = "traceback") -> None:
    """Write the traceback of a plugin's error into a file, once, and name the file in the message.

    `folder` is the run's; where no run has begun in it, or without it, the file is a temporary one.
    """
    cause, error.traceback_of = error.traceback_of, None
    if cause is None:
        return
    text = traceback_text(cause)
    with suppress(OSError):
        path = _write(text, folder, name)
        error.message = f"{error.message} The traceback is in {path}."


def traceback_text(cause: BaseException) -> str:
    """Return a traceback as Python prints it."""
    return "".join(traceback.format_exception(cause))


def _write(text: str, folder: Path | None, name: str) -> Path:
    name = re.sub(r"[^\w.-]+", "-", name)
    if folder is not None and (folder / "args.json").is_file():
        path = folder / f"{name}.txt"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        return path
    descriptor, temporary = tempfile.mkstemp(prefix=f"swift-{name}-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Path(temporary)
