"""State of a run (running, ended, died) and its cause, from the files in its folder."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swift.errors import SwiftError
from swift.observers import LOGGING_FILE
from swift.observers.lines import PROGRESS, Line
from swift.untrusted import open_regular
from swift_ui.acting.job_runner import out_of_memory_kills
from swift_ui.looking.holder import RunHolder, holder_of
from swift_ui.looking.index import NotFound, file_in
from swift_ui.looking.lines import parsed

LOG_FILE = "log.txt"
"""Output of a run that the dashboard started; runs in a terminal have none."""
RUNNING, DIED, SILENT = "running", "died", "silent"
ENDINGS = frozenset({"completed", "stopped", "failed"})
SILENCE = 900.0
"""Seconds without output after which a run on another machine is shown as silent."""
_ENDS = (1 << 13, 1 << 16, 1 << 20)
"""Bytes to read from the end of a file, in increasing sizes until they contain a line of a step."""
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError|Cannot allocate memory|std::bad_alloc|\bOOM\b", re.I)
_CAUSE = re.compile(
    r"^(Error: .+|Ended by .+|[\w.]*(?:Error|Exception|Interrupt)\b.*|.*[Ss]ignal \d+ .*|Killed|Segmentation fault.*)$"
)
_BY_RUNNER = "Ended by "
"""Prefix of the job runner's log line about the signal that ended a command."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|[\x00-\x08\x0b-\x1f]")


@dataclass(frozen=True)
class RunState:
    """State of a run."""

    name: str
    """'running', 'completed', 'stopped', 'failed', 'died', or 'silent' (on another machine, without output)."""
    cause: str
    """Why it ended; empty if nothing went wrong."""
    step: int
    total_steps: int
    updated: float
    """Time of the last output, in seconds since 1970."""
    started: float
    process: int | None = None
    host: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return asdict(self)


class StateReader:
    """Reads states of runs; caches files that did not change."""

    def __init__(self) -> None:
        self._tails: dict[Path, tuple[float, int, list[Line]]] = {}
        self._seen_alive: dict[Path, int] = {}

    def state(self, folder: Path) -> RunState:
        """Return the current state of a run."""
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
        """Return the last line of a step in `logging.jsonl`, and the summary if it follows."""
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
            self._seen_alive.setdefault(folder, out_of_memory_kills())
            return RUNNING, ""
        status = last.get("status")
        if isinstance(status, str) and status in ENDINGS:
            message = last.get("message")
            return status, _CONTROL.sub("", message) if isinstance(message, str) else ""
        if alive is None:
            return (RUNNING, "") if time.time() - updated < SILENCE else (SILENT, "")
        return DIED, self._cause(folder)

    def _cause(self, folder: Path) -> str:
        """Return the likely cause of a process that ended without a summary."""
        logged = _last_error(_end_of(folder, LOG_FILE)) or _last_error(_end_of(folder, "traceback-0.txt"))
        killed = out_of_memory_kills() > self._seen_alive.get(folder, out_of_memory_kills())
        if logged and _OUT_OF_MEMORY.search(logged):
            return logged if logged.startswith(_BY_RUNNER) else f"Out of memory: {logged}"
        if killed:
            return "Out of memory: the kernel killed a process on this machine (SIGKILL) during the run."
        if (folder / "hang").is_dir():
            return f"The run hung and its watchdog ended it. See {folder / 'hang'}."
        return logged or "The process ended without an error message: it was killed (SIGKILL) or the machine went down."


def _last_error(log: str) -> str:
    """Return the last line of a log with an error or signal; empty if there is none."""
    lines = [_CONTROL.sub("", line).strip() for line in log.splitlines()[-80:]]
    return next((line[:400] for line in reversed(lines) if _CAUSE.match(line)), "")


def _progress(lines: list[Line]) -> tuple[int, int]:
    """Return the last step and the total number of steps."""
    for line in reversed(lines):
        found = re.fullmatch(r"(\d{1,12})/(\d{1,12})", str(line.get(PROGRESS, "")))
        if found:
            return int(found[1]), int(found[2])
    return 0, 0


def _last_lines(folder: Path) -> list[Line]:
    for most in _ENDS:
        lines = parsed(_end_of(folder, LOGGING_FILE, most).encode())
        steps = [index for index, line in enumerate(lines) if "step" in line]
        if steps:
            return lines[steps[-1] :]
    return lines


def _end_of(folder: Path, name: str, most: int = 1 << 16) -> str:
    """Return the last complete lines of a run's file; empty if there is none."""
    try:
        with open_regular(file_in(folder, name), NotFound) as file:
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
