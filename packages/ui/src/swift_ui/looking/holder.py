"""The process that uses a run's folder, from its lock file. Nothing here takes the lock."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from swift.errors import SwiftError
from swift.train import LOCK_FILE
from swift.untrusted import open_regular

_HOLDER = re.compile(r"process (?P<process>\d+) on (?P<host>\S+)")
_LINE = 400
"""Bytes to read of a lock file, which has one short line."""
_CLOCKS_DIFFER = 2.0
"""Maximum difference in seconds between the clocks of the file system and of processes."""


@dataclass(frozen=True)
class RunHolder:
    """The process named in the lock file of a run's folder."""

    process: int
    host: str
    since: float
    """When it took the lock, in seconds since 1970."""
    alive: bool | None
    """Whether it still holds the lock; None for another machine, where this cannot be checked."""


def holder_of(folder: Path) -> RunHolder | None:
    """Return the process that holds a run's lock, or held it last; None where the lock file cannot be read.

    The lock itself is never taken: a run that starts at that moment would be refused.
    """
    path = folder / LOCK_FILE
    try:
        with open_regular(path, SwiftError) as file:
            found = _HOLDER.match(file.read(_LINE).decode(errors="replace"))
            since = os.fstat(file.fileno()).st_mtime
    except (SwiftError, OSError):
        return None
    if found is None:
        return None
    process, host = int(found["process"]), found["host"]
    here = host == os.uname().nodename
    return RunHolder(process, host, since, _holds(process, path, since) if here else None)


def _holds(process: int, path: Path, since: float) -> bool:
    """Return whether the process is alive, took the lock, and has it open."""
    import psutil

    try:
        other = psutil.Process(process)
        if other.create_time() > since + _CLOCKS_DIFFER or other.status() == psutil.STATUS_ZOMBIE:
            return False
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    opened = Path(f"/proc/{process}/fd")
    try:
        mine = path.stat()
        return any(_is_same(each.path, mine) for each in os.scandir(opened))
    except OSError:  # another user's process, or no /proc on this system: it is alive, and more cannot be checked
        return True


def _is_same(descriptor: str, file: os.stat_result) -> bool:
    try:
        found = Path(descriptor).stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino)
