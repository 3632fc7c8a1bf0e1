"""`swift watch RUN`: a run in a terminal, live. It reads the run's folder, as the page does."""

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
"""Exit code where the run failed or died, for scripts."""


class WatchCommand:
    """Implements `swift.contracts.Command`."""

    summary = "A run in a terminal, live"
    options_model = WatchOptions

    def run(self, options: WatchOptions) -> int:
        """Draw the run until it ends; return the exit code."""
        from swift_ui.screen import WatchScreen

        screen = WatchScreen(_run_at(Path(options.run).expanduser()))
        if options.once or not sys.stdout.isatty():
            from rich.console import Console

            Console().print(screen.draw(), highlight=False)
        else:
            _follow(screen, options.every)
        return FAILED if screen.state.name in ("failed", "died") else 0


def _follow(screen: WatchScreen, every: float) -> None:
    from rich.live import Live

    from swift_ui.looking.state import RUNNING

    try:
        with Live(screen.draw(), auto_refresh=False) as live:
            while screen.state.name == RUNNING:
                time.sleep(every)
                live.update(screen.draw(), refresh=True)
    except KeyboardInterrupt:
        pass  # it ends the watching, and not the run


def _run_at(path: Path) -> Path:
    """Return the run that a path means: itself, the one around a checkpoint, or the newest below a folder."""
    from swift_ui.looking.index import RunIndex
    from swift_ui.looking.state import StateReader

    path = path.absolute()
    if not path.is_dir():
        raise UsageError(
            f"There is no folder {path}.", hint="Name a run's folder, or one with runs in it: swift watch output"
        )
    around = path.parent if path.name.startswith("checkpoint-") else path
    found = list(RunIndex((around,)).find().values())
    if not found:
        raise UsageError(f"There are no runs in {path}.", hint="For example: swift watch output/MODEL/v0-DATE-TIME")
    states = StateReader()
    return max(found, key=lambda folder: states.state(folder).started)
