"""Typer apps as commands: an entry point in `swift.commands` may name one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift.plugins.entry import PluginEntry


def as_command(entry: PluginEntry, plugin: Any) -> Any:
    """Return the command of a plugin: the plugin itself, or an object that runs the Typer app that it names."""
    typer = sys.modules.get("typer")  # a module with a Typer app has imported it
    return TyperCommand(entry, plugin) if typer is not None and isinstance(plugin, typer.Typer) else plugin


class TyperCommand:
    """Runs a Typer app, which reads its words and shows its help by itself. Implements `swift.contracts.Command`."""

    options_model = None

    def __init__(self, entry: PluginEntry, app: Any) -> None:
        from typer.main import get_command

        self._name = entry.name
        self._command = get_command(app)
        self.summary = (self._command.help or f"from {entry.distribution} {entry.version}").strip().splitlines()[0]

    def run(self, argv: list[str]) -> int:
        """Run the app with the words after the command's name and return its exit code."""
        try:
            self._command.main(argv, prog_name=f"swift {self._name}")
        except SystemExit as ended:  # how an app ends, well or not
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return 0
