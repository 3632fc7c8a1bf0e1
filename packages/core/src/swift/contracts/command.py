"""Interface of plugins that add a command: `swift NAME ...`, where NAME is the name of the entry point.

Importable without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel


class Command(Protocol):
    """One command. The entry point names an object, a module, or a class that is called without arguments.

    With `options_model`, core makes flags, help and "did you mean" of its fields, as it does for its own commands, and
    `run` gets the validated options. Without it (None, or no such member), `run` gets the words after the command as a
    list of texts, and reads them itself. A `typer.Typer` app may be named instead of such an object.

    With `passes_on = True` beside an `options_model`, flags that are not among its fields are no error: `run` gets them
    as a list of words after the options, for a command that hands them on (`swift plan` to the command that trains).
    """

    summary: str
    """One line for `swift --help`."""
    options_model: type[BaseModel] | None
    """A `swift.Section` whose fields are the verb's flags, or None."""

    def run(self, given: Any) -> int:
        """Do what the command says and return the exit code. Errors for users are raised as `swift.errors.SwiftError`."""
