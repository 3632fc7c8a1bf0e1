"""Errors of requests that name what is not there, and the only way to a file of a run."""

from __future__ import annotations

from pathlib import Path

from swift.errors import SwiftError
from swift.untrusted import inside


class NotThere(SwiftError):
    """A run or a file of it that is not below the roots: answered with 404."""


def file_in(folder: Path, name: str) -> Path:
    """Return a file of a run by its name; raise `NotThere` where it is missing or leads out of the folder."""
    path = inside(folder, name, NotThere, source="The request")
    if not path.is_file():
        raise NotThere(f"This run has no {name}.")
    return path
