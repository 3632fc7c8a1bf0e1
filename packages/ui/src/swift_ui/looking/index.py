"""The runs below the roots, found cheaply. A request names a run by its key, never by a path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from swift.runs import ARGS_FILE, LOGGING_FILE
from swift_ui.looking.missing import NotThere

DEPTH = 4
"""Levels below a root on which runs are looked for: output/MODEL/RUN is on the second."""
_MARKS = frozenset({ARGS_FILE, LOGGING_FILE})


class RunIndex:
    """Knows the folders of runs by their keys. Links are not followed: what is found lies below a root."""

    def __init__(self, roots: tuple[Path, ...]) -> None:
        self.roots = tuple(root.resolve() for root in roots)
        self._known: dict[str, Path] = {}

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


def key_of(folder: Path) -> str:
    """Return the key of a run: the same after a restart, and no part of a path."""
    return blake2b(os.fsencode(folder), digest_size=8).hexdigest()


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return
    if any(entry.name in _MARKS and entry.is_file(follow_symlinks=False) for entry in entries):
        yield folder
        return
    if depth:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                yield from _runs_below(Path(entry.path), depth - 1)
