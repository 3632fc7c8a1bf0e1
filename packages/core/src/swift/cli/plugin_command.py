"""`swift NAME`, where a plugin adds the command NAME (`swift.contracts.Command`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swift.cli.help import asks_for_help, show_help
from swift.cli.options import read_options
from swift.plugins.blame import failing
from swift.plugins.load import load_command
from swift.plugins.return_values import wrong


def run(name: str, args: Sequence[str]) -> int:
    """Run the command of the plugin with the entry point `name`; return the exit code.

    A plugin without `options_model` parses its arguments itself, including `--help`.
    """
    plugin = load_command(name)
    command = plugin.object
    options = getattr(command, "options_model", None)
    given: Any = list(args)
    passed_on: list[list[str]] = []
    if options is not None:
        if asks_for_help(args):
            show_help(name, command.summary, options)
            return 0
        passes_on = bool(getattr(command, "passes_on", False))
        with failing(plugin.entry, options.__name__):
            typed = read_options(name, args, options, passes_on=passes_on)
        given = typed.options
        if not isinstance(given, options):
            raise wrong(plugin.entry, f"{options.__name__}.model_validate", f"a {options.__name__}", given)
        passed_on = [[*typed.positional, *typed.passed_on]] if passes_on else []
    with failing(plugin.entry, f"swift {name}"):
        code: object = command.run(given, *passed_on)
        if not isinstance(code, int):
            raise wrong(plugin.entry, "run", "an exit code, 0 for success", code)
        return int(code)
