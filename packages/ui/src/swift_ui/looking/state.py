"""How a run stands: running, ended, or dead, and of what. All of it is read from its folder."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swift.errors import SwiftError
from swift.runs import LOGGING_FILE, PROGRESS, Line, RunHolder, holder_of
from swift.untrusted import open_regular
from swift_ui.looking.lines import parsed
from swift_ui.looking.missing import NotThere, file_in

LOG_FILE = "log.txt"
"""What a run printed, where something kept it: of runs that were started from a terminal nothing does."""
RUNNING, DIED, SILENT = "running", "died", "silent"
ENDINGS = frozenset({"completed", "stopped", "failed"})
SILENCE = 900.0
"""Seconds after which a run on another machine, whose processes cannot be seen, is said to be silent."""
_ENDS = (1 << 13, 1 << 16, 1 << 20)
"""Bytes of a file's end that are read: more where these hold no whole line of a step."""
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError|Cannot allocate memory|std::bad_alloc|\bOOM\b", re.I)
_TOLD = re.compile(
    r"^(Error: .+|Ended by .+|[\w.]*(?:Error|Exception|Interrupt)\b.*|.*[Ss]ignal \d+ .*|Killed|Segmentation fault.*)$"
)
_BY_KEEPER = "Ended by "
"""Beginning of what is written into the log of a command that the page started, where a signal ended it."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|[\x00-\x08\x0b-\x1f]")


@dataclass(frozen=True)
class RunState:
    """State of one run at one moment."""

    name: str
    """'running', 'completed', 'stopped', 'failed', 'died', or 'silent' (on another machine, and nothing is written)."""
    cause: str
    """Why it ended, in a sentence; empty where nothing went wrong."""
    step: int
    total_steps: int
    updated: float
    """When something was last written, in seconds since 1970."""
    started: float
    process: int | None = None
    host: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the state for the page."""
        return asdict(self)


class StateReader:
    """Reads states, and keeps what it read of files that did not change since: a thousand runs are looked at often."""

    def __init__(self) -> None:
        self._tails: dict[Path, tuple[float, int, list[Line]]] = {}
        self._seen_alive: dict[Path, int] = {}
        self._killed_before = _killed_here()

    def state(self, folder: Path) -> RunState:
        """Return how a run stands now."""
        lines = self.tail(folder)
        last = lines[-1] if lines else {}
        step, total = _progress(lines)
        holder = holder_of(folder)
        written = _time(folder / LOGGING_FILE)
        started = holder.since if holder is not None else _time(folder)
        updated = max(written, started)
        name, cause = self._name(folder, last, holder, updated)
        process = holder.process if holder is not None else None
        return RunState(name, cause, step, total, updated, started, process, holder.host if holder is not None else "")

    def tail(self, folder: Path) -> list[Line]:
        """Return the last line of a step in `logging.jsonl`, and the run's summary where that follows it."""
        path = folder / LOGGING_FILE
        try:
            found = path.lstat()
        except OSError:
            return []
        known = self._tails.get(folder)
        if known is None or known[:2] != (found.st_mtime, found.st_size):
            known = (found.st_mtime, found.st_size, _last_lines(folder))
            self._tails[folder] = known
        return known[2]

    def _name(self, folder: Path, last: Line, holder: RunHolder | None, updated: float) -> tuple[str, str]:
        alive = holder.alive if holder is not None else False
        if alive:
            self._seen_alive.setdefault(folder, _killed_here())
            return RUNNING, ""
        status = last.get("status")
        if isinstance(status, str) and status in ENDINGS:
            message = last.get("message")
            return status, _CONTROL.sub("", message) if isinstance(message, str) else ""
        if alive is None:
            return (RUNNING, "") if time.time() - updated < SILENCE else (SILENT, "")
        return DIED, self._cause(folder)

    def _cause(self, folder: Path) -> str:
        """Return what can be known of a process that ended without a word."""
        told = _last_words(_end_of(folder, LOG_FILE)) or _last_words(_end_of(folder, "traceback-0.txt"))
        killed = _killed_here() > self._seen_alive.get(folder, _killed_here())
        if told and _OUT_OF_MEMORY.search(told):
            return told if told.startswith(_BY_KEEPER) else f"Out of memory: {told}"
        if killed:
            return "Out of memory: the kernel killed a process of this machine (SIGKILL) while the run was watched."
        if (folder / "hang").is_dir():
            return f"It hung, and was ended by its watchdog: see {folder / 'hang'}."
        return told or "Its process is gone without a word: killed (SIGKILL), or the machine went down."


def _last_words(log: str) -> str:
    """Return the line of a log that says why a program ended, if any does."""
    lines = [_CONTROL.sub("", line).strip() for line in log.splitlines()[-80:]]
    return next((line[:400] for line in reversed(lines) if _TOLD.match(line)), "")


def _progress(lines: list[Line]) -> tuple[int, int]:
    """Return the last step and how many there are to be."""
    for line in reversed(lines):
        found = re.fullmatch(r"(\d{1,12})/(\d{1,12})", str(line.get(PROGRESS, "")))
        if found:
            return int(found[1]), int(found[2])
    return 0, 0


def _last_lines(folder: Path) -> list[Line]:
    for most in _ENDS:
        lines = parsed(_end_of(folder, LOGGING_FILE, most).encode())
        steps = [place for place, line in enumerate(lines) if "step" in line]
        if steps:
            return lines[steps[-1] :]
    return lines


def _end_of(folder: Path, name: str, most: int = 1 << 16) -> str:
    """Return the last whole lines of a file of a run; nothing where there is none."""
    try:
        with open_regular(file_in(folder, name), NotThere) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            text = file.read(most)
    except (SwiftError, OSError):
        return ""
    if size > most:
        text = text.partition(b"\n")[2]
    return text.decode("utf-8", errors="replace")


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _killed_here() -> int:
    """Return how many processes the kernel has killed here for want of memory; 0 where it does not say."""
    for path, name in ((Path("/sys/fs/cgroup/memory.events"), "oom_kill"), (Path("/proc/vmstat"), "oom_kill")):
        try:
            text = path.read_text()
        except OSError:
            continue
        found = re.search(rf"^{name} (\d+)$", text, re.M)
        if found:
            return int(found[1])
    return 0
