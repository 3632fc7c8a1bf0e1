"""`swift watch RUN`: shows a run live in a terminal, from the files in its folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from swift.errors import UsageError
from swift_ui.options import WatchOptions

if TYPE_CHECKING:
    from swift_ui.screen import WatchScreen

FAILED = 1
"""Exit code for a run that failed or died."""


class WatchCommand:
    """Implements `swift.contracts.Command`."""

    group = "Inspect"
    summary = "Show a run live in a terminal"
    options_model = WatchOptions

    def run(self, options: WatchOptions) -> int:
        """Show the run until it ends; return the exit code."""
        from swift_ui.screen import WatchScreen

        screen = WatchScreen(_run_at(Path(options.run).expanduser()))
        if options.once or not sys.stdout.isatty():
            from rich.console import Console

            Console().print(screen.render(), highlight=False)
        else:
            _follow(screen, options.every)
        return FAILED if screen.state.name in ("failed", "died") else 0


def _follow(screen: WatchScreen, every: float) -> None:
    from rich.live import Live

    from swift_ui.looking.state import RUNNING

    try:
        with Live(screen.render(), auto_refresh=False) as live:
            while screen.state.name == RUNNING:
                time.sleep(every)
                live.update(screen.render(), refresh=True)
    except KeyboardInterrupt:
        pass  # stops watching; the run continues


def _run_at(path: Path) -> Path:
    """Return the run at a path: itself, the run of a checkpoint, or the newest run in a folder."""
    from swift_ui.looking.index import RunIndex
    from swift_ui.looking.state import StateReader

    path = path.absolute()
    if not path.is_dir():
        raise UsageError(
            f"Folder not found: {path}", hint="Pass the folder of a run, or of several runs: swift watch output"
        )
    around = path.parent if path.name.startswith("checkpoint-") else path
    found = list(RunIndex((around,)).find().values())
    if not found:
        raise UsageError(f"No runs found in {path}.", hint="For example: swift watch output/MODEL/v0-DATE-TIME")
    states = StateReader()
    return max(found, key=lambda folder: states.state(folder).started)
