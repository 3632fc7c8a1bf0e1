"""Index of the runs below the roots. Requests name runs by key, never by path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from swift.errors import SwiftError
from swift.observers import LOGGING_FILE
from swift.train import ARGS_FILE, LOCK_FILE
from swift.untrusted import inside
from swift_ui.looking.holder import holder_of

T = TypeVar("T")

DEPTH = 4
"""Maximum depth of runs below a root; output/MODEL/RUN has depth 2."""
_MARKS = frozenset({ARGS_FILE, LOGGING_FILE})


class NotFound(SwiftError):
    """A run, file or command that does not exist: status 404."""


class RunIndex:
    """Folders of runs by key. Links are not followed, so all folders are below a root."""

    def __init__(self, roots: tuple[Path, ...]) -> None:
        self.roots = tuple(root.resolve() for root in roots)
        self._known: dict[str, Path] = {}
        self._kept: dict[Path, tuple[float, Any]] = {}

    def find(self) -> dict[str, Path]:
        """Search the roots, and return the runs' folders by key."""
        self._known = {key_of(folder): folder for root in self.roots for folder in _runs_below(root, DEPTH)}
        return self._known

    def folder(self, key: str) -> Path:
        """Return a run's folder; raise `NotFound` for an unknown key."""
        found = self._known.get(key) or self.find().get(key)
        if found is None or not found.is_dir():
            raise NotFound("Run not found in the folders of this server.")
        return found

    def once(self, folder: Path, read: Callable[[], T]) -> T:
        """Return the result of `read`, cached until the run's `args.json` changes."""
        try:
            changed = (folder / ARGS_FILE).lstat().st_mtime
        except OSError:
            return read()
        kept = self._kept.get(folder)
        if kept is None or kept[0] != changed:
            kept = self._kept[folder] = (changed, read())
        found: T = kept[1]
        return found


def file_in(folder: Path, name: str) -> Path:
    """Return a file of a run by its name; raise `NotFound` if it is missing or outside of the folder."""
    path = inside(folder, name, NotFound, source="The request")
    if not path.is_file():
        raise NotFound(f"This run does not have {name}.")
    return path


def key_of(folder: Path) -> str:
    """Return the key of a run, which is the same after a restart."""
    return blake2b(os.fsencode(folder), digest_size=8).hexdigest()


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return
    names = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    # A run that is loading its model has only its lock.
    if names & _MARKS or (LOCK_FILE in names and holder_of(folder) is not None):
        yield folder
        return
    if depth:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                yield from _runs_below(Path(entry.path), depth - 1)
