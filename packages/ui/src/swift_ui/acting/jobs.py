"""Commands that the page has started. Their folders are all that is known of them: a restart of the server finds them.

ROOT/.swift-ui/jobs/ID/   job.json (what was asked), started.json, ended.json, log.txt
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from swift.errors import SwiftError, UsageError
from swift.untrusted import open_regular, read_text
from swift_ui.acting import job_runner
from swift_ui.acting.told import EndTold, FactsTold, JobTold, StartTold, StopTold, told
from swift_ui.looking.missing import NotThere

PLACE = Path(".swift-ui") / "jobs"
_ID = re.compile(r"\d{8}-\d{6}-\d{6}-[0-9a-f]{8}")
_STARTS = 10.0
"""Seconds within which a keeper has started its command."""
STOPPING = "stopping.json"
_TAIL = 64_000
"""Bytes of a log that are shown."""


@dataclass(frozen=True)
class StartedCommand:
    """One command, as its folder shows it."""

    id: str
    folder: Path
    kind: str
    """'command', or 'chat' for a model that answers the page."""
    words: tuple[str, ...]
    """As typed after `swift`."""
    run_folder: Path | None
    asked: float
    state: str
    """'starting', 'running', 'completed', 'stopped', 'failed' or 'died'."""
    process: int | None = None
    process_began: float | None = None
    code: int | None = None
    cause: str = ""
    ended: float | None = None
    stopping: bool = False
    facts: FactsTold | None = None
    log_from: int = 0
    """The place in its log where what it printed begins."""

    @property
    def alive(self) -> bool:
        """Return whether it can still be stopped."""
        return self.state in ("starting", "running")

    def log(self, most: int = _TAIL) -> str:
        """Return the end of what the command printed."""
        try:
            with open_regular(self.folder / job_runner.LOG, SwiftError) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self.log_from, size - most))
                return file.read(most).decode(errors="replace")
        except (SwiftError, OSError):
            return ""


class JobBook:
    """Starts commands, finds them again, and stops them."""

    def __init__(self, root: Path) -> None:
        self._place = root / PLACE

    def start(
        self,
        words: Sequence[str],
        *,
        run_folder: Path | None = None,
        kind: str = "command",
        program: Sequence[str] = (),
        secret: str = "",
    ) -> StartedCommand:
        """Start `swift WORDS`, or another `program` that is shown as these words."""
        name = f"{datetime.now():%Y%m%d-%H%M%S-%f}-{secrets.token_hex(4)}"
        folder = self._place / name
        folder.mkdir(parents=True, mode=0o700)
        if secret:
            descriptor = os.open(folder / "secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secret)
        asked = {
            "words": list(words),
            "kind": kind,
            "program": [str(each) for each in program or (sys.executable, "-m", "swift", *words)],
            "run_folder": None if run_folder is None else str(run_folder),
            "cwd": str(Path.cwd()),
            "environment": {"SWIFT_UI_JOB": str(folder)} if kind != "command" else {},
            "asked": time.time(),
        }
        job_runner.write(folder / job_runner.JOB, asked)
        subprocess.run(
            [sys.executable, "-m", "swift_ui.acting.job_runner", str(folder)], stdin=subprocess.DEVNULL, check=True
        )
        return self.find(name)

    def all(self) -> list[StartedCommand]:
        """Return all commands, the newest first."""
        with contextlib.suppress(OSError):
            names = sorted((each.name for each in self._place.iterdir() if _ID.fullmatch(each.name)), reverse=True)
            return [job for name in names if (job := self._job(name)) is not None]
        return []

    def find(self, name: str) -> StartedCommand:
        """Return one command; raise `NotThere` for an id that is none."""
        job = self._job(name) if _ID.fullmatch(name) else None
        if job is None:
            raise NotThere("There is no such command: its folder is gone.")
        return job

    def of_run(self, run_folder: Path) -> StartedCommand | None:
        """Return the newest command that runs, or ran, in the folder of a run."""
        return next((job for job in self.all() if job.run_folder == run_folder), None)

    def secret(self, job: StartedCommand) -> str:
        """Return what only the server and the command know."""
        try:
            return read_text(job.folder / "secret", SwiftError)
        except SwiftError:
            raise NotThere("This command has no secret any more.") from None

    def stop(self, job: StartedCommand, *, now: bool = False) -> None:
        """Ask a command to end: as Ctrl-C does once, or at once."""
        if not job.alive or job.process is None or not lives(job.process, job.process_began):
            raise UsageError("This command has ended already.")
        job_runner.write(job.folder / STOPPING, {"at": time.time(), "now": now})
        end_process(job.process, now=now)

    def _job(self, name: str) -> StartedCommand | None:
        folder = self._place / name
        asked = told(folder / job_runner.JOB, JobTold)
        if asked is None:
            return None
        started = told(folder / job_runner.STARTED, StartTold)
        alive = started is not None and lives(started.keeper, started.keeper_began)
        ended = told(folder / job_runner.ENDED, EndTold)  # after the look at its keeper, who writes this before it ends
        stopping = told(folder / STOPPING, StopTold)
        state, cause = _state(asked, ended, started=started is not None, alive=alive)
        if state == "died" and stopping is not None and stopping.now:
            state, cause = "stopped", "Ended at once, as it was told."
        elif state == "completed" and stopping is not None and asked.run_folder is None:
            state = "stopped"  # a server has no end of its own
        return StartedCommand(
            name,
            folder,
            asked.kind,
            tuple(asked.words),
            None if asked.run_folder is None else Path(asked.run_folder),
            asked.asked,
            state,
            None if started is None else started.process,
            None if started is None else started.began,
            None if ended is None else ended.code,
            cause,
            None if ended is None else ended.at,
            stopping is not None,
            told(folder / "facts.json", FactsTold),
            0 if started is None else started.log_from,
        )


def _state(asked: JobTold, ended: EndTold | None, *, started: bool, alive: bool) -> tuple[str, str]:
    """Return the state of a command, and what is to be said of it."""
    if ended is not None:
        code = ended.code
        if code < 0 and -code not in (signal.SIGTERM, signal.SIGINT):
            return "died", job_runner.cause(ended.model_dump())
        if code in (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT):
            return "stopped", ""
        return ("completed", "") if code == 0 else ("failed", ended.problem)
    if not started:
        late = time.time() - asked.asked > _STARTS
        return ("died", "It was never started.") if late else ("starting", "")
    if alive:
        return "running", ""
    return "died", "It ended, and so did the process that waited for it: the machine was restarted, say."


def lives(process: int, began: float | None) -> bool:
    """Return whether a process lives, and is the one that began then."""
    try:
        if psutil.Process(process).status() == psutil.STATUS_ZOMBIE:
            return False
    except psutil.Error:
        return False
    return began is None or job_runner.began(process) == began


def end_process(process: int, *, now: bool) -> None:
    """Send SIGTERM to a process; `now` sends SIGKILL to all that it has started too."""
    try:
        first = psutil.Process(process)
        if not now:
            first.send_signal(signal.SIGTERM)
            return
        for each in [*first.children(recursive=True), first]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    except psutil.NoSuchProcess:
        raise UsageError("This command has ended already.") from None
    except psutil.AccessDenied:
        raise UsageError("It belongs to another user of this machine, who alone can stop it.") from None
