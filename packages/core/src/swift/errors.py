"""Errors that a user sees: one clear sentence, what to type next, and the exit code of the command.

Anything that a person can fix by typing something else is a `SwiftError`; it is printed without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOW_TRACEBACK = "SWIFT_TRACEBACK"
"""Environment variable: show where an error was raised."""


class SwiftError(Exception):
    """Base of all errors that are meant for the user's eyes."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.traceback_of: BaseException | None = None
        """What a plugin raised, whose traceback is kept in a file when this is shown."""

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(SwiftError):
    """A command line that cannot be meant: unknown command, missing flag, wrong combination."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration value that is unknown, malformed or contradicts another."""


class DataError(UsageError):
    """A data set that is missing, malformed or holds nothing to learn from."""


class ModelError(UsageError):
    """A model that cannot be found, read or trained as asked."""


class CheckpointError(UsageError):
    """A checkpoint that is missing, damaged, or belongs to another run."""


class ExportError(SwiftError):
    """An export that could not be written, or whose verification failed."""


class ServeError(SwiftError):
    """A server that did not come up, or that ended by itself."""


class UnsupportedLayout(UsageError):
    """A backend was asked for something that it does not do. Raised before any weights load."""


class PluginError(SwiftError):
    """A plugin that is missing, broken, or speaks another hook API."""

    exit_code = 3


class TrainingError(SwiftError):
    """A run that failed while training: says the rank, the step and the checkpoint to resume from."""


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the nearest of `options`, or an empty string."""
    nearest = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""
