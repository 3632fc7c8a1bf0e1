"""Runs a command (`swift.contracts.Command`), core's own included."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from swift.cli.commands import command_name
from swift.cli.help import asks_for_help, show_help
from swift.cli.options import read_options
from swift.plugins.blame import failing
from swift.plugins.entry import CORE, PluginEntry
from swift.plugins.load import load, load_command
from swift.plugins.return_values import wrong


def run(entries: Sequence[PluginEntry], args: Sequence[str]) -> int:
    """Run the command of the installed entry points of one name; return the exit code.

    A plugin without `options_model`, or with `parses_args`, parses its arguments itself, including `--help`.
    """
    first = entries[0]
    plugin = load(first) if len(entries) == 1 and first.allowed else load_command(first.name)
    command, entry = plugin.object, plugin.entry
    options = None if getattr(command, "parses_args", False) else getattr(command, "options_model", None)
    given: Any = list(args)
    passed_on: list[list[str]] = []
    if options is not None:
        name = command_name(entry.name)
        if asks_for_help(args):
            show_help(name, command.summary, options)
            return 0
        passes_on = bool(getattr(command, "passes_on", False))
        with _failing(entry, options.__name__):
            typed = read_options(name, args, options, passes_on=passes_on)
        given = typed.options
        if not isinstance(given, options):
            raise wrong(entry, f"{options.__name__}.model_validate", f"a {options.__name__}", given)
        passed_on = [[*typed.positional, *typed.passed_on]] if passes_on else []
    with _failing(entry, f"swift {entry.name}"):
        code: object = command.run(given, *passed_on)
        if not isinstance(code, int):
            raise wrong(entry, "run", "an exit code, 0 for success", code)
        return int(code)


def _failing(entry: PluginEntry, function: str) -> AbstractContextManager[None]:
    """Blame a plugin for its errors; those of core keep their tracebacks."""
    return nullcontext() if entry.distribution == CORE else failing(entry, function)
