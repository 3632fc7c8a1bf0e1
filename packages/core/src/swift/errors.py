"""Errors for users: a message, a hint what to type, and the exit code of the command.

Every error that a user can fix is a `SwiftError`, which is printed without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

SHOW_TRACEBACK = "SWIFT_TRACEBACK"
"""Environment variable that prints tracebacks."""


class SwiftError(Exception):
    """Base class of errors for users."""

    exit_code = 1
    key: str | None = None
    """The key of the configuration whose value the message quotes without naming the key."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.traceback_of: BaseException | None = None
        """The exception of a plugin, whose traceback is written to a file when this error is printed."""

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(SwiftError):
    """An invalid command line: unknown command, missing flag, wrong combination."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration value that is unknown, malformed or contradicts another."""


class NotTrainable(UsageError):
    """A configuration or command of a third-party program that swift cannot train, such as one for inference."""


class DataError(UsageError):
    """A data set that is missing, malformed or has no usable rows."""


class ModelError(UsageError):
    """A model that cannot be found, read or trained as configured."""


class CheckpointError(UsageError):
    """A checkpoint that is missing, damaged, or belongs to another run."""


class ExportError(SwiftError):
    """An export that could not be written, or whose verification failed."""


class ServeError(SwiftError):
    """A server that did not start, or that exited unexpectedly."""


class UnsupportedLayout(UsageError):
    """A configuration that the backend does not support; raised before any weights are loaded."""


class PluginError(SwiftError):
    """A plugin that is missing, broken, or for another hook API."""

    exit_code = 3


class TrainingError(SwiftError):
    """A run that failed during training; names the rank, the step and the checkpoint to resume from."""


@contextmanager
def about(key: str) -> Iterator[None]:
    """Set the key that errors are about, unless they have one."""
    try:
        yield
    except SwiftError as error:
        error.key = error.key or key
        raise


def listed(names: Sequence[object], most: int = 3) -> str:
    """Return the first names of a list, and how many more there are: 'a, b, c and 4 more'."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(map(str, names[:most]))}{more}"


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the nearest of `options`, or an empty string."""
    nearest = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
