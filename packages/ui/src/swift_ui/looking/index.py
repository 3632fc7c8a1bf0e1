"""The runs below the roots, found cheaply. A request names a run by its key, never by a path."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from swift.runs import ARGS_FILE, LOCK_FILE, LOGGING_FILE, holder_of
from swift_ui.looking.missing import NotThere

T = TypeVar("T")

DEPTH = 4
"""Levels below a root on which runs are looked for: output/MODEL/RUN is on the second."""
_MARKS = frozenset({ARGS_FILE, LOGGING_FILE})


class RunIndex:
    """Knows the folders of runs by their keys. Links are not followed: what is found lies below a root."""

    def __init__(self, roots: tuple[Path, ...]) -> None:
        self.roots = tuple(root.resolve() for root in roots)
        self._known: dict[str, Path] = {}
        self._kept: dict[Path, tuple[float, Any]] = {}

    def find(self) -> dict[str, Path]:
        """Look through the roots, and return the runs' folders by key."""
        self._known = {key_of(folder): folder for root in self.roots for folder in _runs_below(root, DEPTH)}
        return self._known

    def folder(self, key: str) -> Path:
        """Return a run's folder; raise `NotThere` for a key that belongs to none."""
        found = self._known.get(key) or self.find().get(key)
        if found is None or not found.is_dir():
            raise NotThere("There is no such run below the folders that this server was started with.")
        return found

    def once(self, folder: Path, read: Callable[[], T]) -> T:
        """Return what `read` found when the run's `args.json` last changed."""
        try:
            changed = (folder / ARGS_FILE).lstat().st_mtime
        except OSError:
            return read()
        kept = self._kept.get(folder)
        if kept is None or kept[0] != changed:
            kept = self._kept[folder] = (changed, read())
        found: T = kept[1]
        return found


def key_of(folder: Path) -> str:
    """Return the key of a run: the same after a restart, and no part of a path."""
    return blake2b(os.fsencode(folder), digest_size=8).hexdigest()


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return
    names = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    # A run that still loads its model has only its lock.
    if names & _MARKS or (LOCK_FILE in names and holder_of(folder) is not None):
        yield folder
        return
    if depth:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                yield from _runs_below(Path(entry.path), depth - 1)
