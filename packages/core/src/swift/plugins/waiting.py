"""Naming the plugin that a command waits for, where its import or a hook takes long."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from swift.plugins.entry import PluginEntry

PATIENCE = 5.0
"""Seconds until the user is told whom the command waits for."""


@contextmanager
def waiting_for(entry: PluginEntry, doing: str) -> Iterator[None]:
    """Say which plugin is being waited for if this takes longer than a moment. Nothing is ended."""

    def say() -> None:
        sys.stderr.write(f"Still {doing} {entry}. Ctrl-C ends the command.\n")
        sys.stderr.flush()

    if os.environ.get("RANK", "0") != "0":
        yield
        return
    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
