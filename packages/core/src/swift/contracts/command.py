"""Interface of plugins that add a command: `swift NAME ...`, where NAME is the name of the entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pydantic import BaseModel


class Command(Protocol):
    """One command. The entry point names an object, a module, or a class that is called without arguments.

    With `options_model`, core makes flags, help and "did you mean" of its fields, as it does for its own commands, and
    `run` gets the validated options. Without it (None, or no such member), `run` gets the words after the command's
    name as a list of strings, and reads them itself. A `typer.Typer` app may be named instead of such an object.

    With an `options_model` and `passes_on = True`, flags that are not among its fields are no error: `run` gets them as
    a list of words after the options, for a command that passes them to another (`swift plan` to the one that trains).

    `swift --help` reads `summary` and `group` from the source, without importing it: write both as strings in the body
    of the class.

    - `summary`: One line for `swift --help`.
    - `group`: The heading in `swift --help`: `Train`, `Use the result`, `Inspect`, or one of your own.
    - `options_model`: A `swift.Section` whose fields are the command's flags, or None.
    - `parses_args`: Whether `run` gets the arguments as typed although there is an `options_model`, which documents the
      flags.
    """

    summary: str
    group: str = "From plugins"
    options_model: type[BaseModel] | None = None
    parses_args: bool = False
    passes_on: bool = False

    def run(self, given: Any) -> int:
        """Run the command and return the exit code. Errors for users are raised as `swift.errors.SwiftError`."""
