"""A written export takes its name at once, complete."""

from __future__ import annotations

import shutil
from pathlib import Path

from swift.checkpoint.checksums import sync


def put_in_place(temporary: Path, destination: Path) -> None:
    """Make what was written last, and give it its name at once."""
    for path in temporary.rglob("*"):
        sync(path)
    sync(temporary)
    if destination.exists():
        replaced = destination.with_name(f".{destination.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        destination.rename(replaced)
        temporary.rename(destination)
        shutil.rmtree(replaced)
    else:
        temporary.rename(destination)
    sync(destination.parent)
