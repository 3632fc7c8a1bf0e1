"""`swift watch RUN`: a run in a terminal, live."""

from __future__ import annotations

from swift.errors import UsageError
from swift_ui.options import WatchOptions


class WatchCommand:
    """Implements `swift.contracts.Command`."""

    summary = "A run in a terminal, live"
    options_model = WatchOptions

    def run(self, options: WatchOptions) -> int:
        """Draw the run until it ends; return the exit code."""
        raise UsageError("swift watch is not there yet.", hint="Type swift ui")
