"""Commands started by the dashboard. Their folders have their whole state, so a restarted server finds them.

ROOT/.swift-ui/jobs/ID/   job.json (the command), started.json, ended.json, log.txt
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
from swift_ui.acting.job_files import ChatFacts, EndRecord, JobRecord, StartRecord, StopRecord, read_record
from swift_ui.looking.index import NotFound

JOBS_FOLDER = Path(".swift-ui") / "jobs"
_ID = re.compile(r"\d{8}-\d{6}-\d{6}-[0-9a-f]{8}")
_STARTS = 10.0
"""Seconds within which a runner starts its command."""
STOPPING = "stopping.json"
_TAIL = 64_000
"""Bytes of a log to show."""


@dataclass(frozen=True)
class RunningJob:
    """One command, as read from its folder."""

    id: str
    folder: Path
    kind: str
    """'command', or 'chat' for a model of the chat page."""
    argv: tuple[str, ...]
    """Arguments of `swift`."""
    run_folder: Path | None
    requested: float
    state: str
    """'starting', 'running', 'completed', 'stopped', 'failed' or 'died'."""
    process: int | None = None
    process_began: float | None = None
    code: int | None = None
    cause: str = ""
    ended: float | None = None
    stopping: bool = False
    facts: ChatFacts | None = None
    log_from: int = 0
    """Offset in its log where its own output begins."""

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


class JobStore:
    """Starts, finds and stops commands."""

    def __init__(self, root: Path) -> None:
        self._folder = root / JOBS_FOLDER

    def start(
        self,
        argv: Sequence[str],
        *,
        run_folder: Path | None = None,
        kind: str = "command",
        program: Sequence[str] = (),
        secret: str = "",
    ) -> RunningJob:
        """Start `swift ARGV`, or another `program` that is listed with this argv."""
        name = f"{datetime.now():%Y%m%d-%H%M%S-%f}-{secrets.token_hex(4)}"
        folder = self._folder / name
        folder.mkdir(parents=True, mode=0o700)
        if secret:
            descriptor = os.open(folder / "secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secret)
        record = {
            "argv": list(argv),
            "kind": kind,
            "program": [str(each) for each in program or (sys.executable, "-m", "swift", *argv)],
            "run_folder": None if run_folder is None else str(run_folder),
            "cwd": str(Path.cwd()),
            "environment": {"SWIFT_UI_JOB": str(folder)} if kind != "command" else {},
            "requested": time.time(),
        }
        job_runner.write(folder / job_runner.JOB, record)
        subprocess.run(
            [sys.executable, "-m", "swift_ui.acting.job_runner", str(folder)], stdin=subprocess.DEVNULL, check=True
        )
        return self.find(name)

    def all(self) -> list[RunningJob]:
        """Return all commands, the newest first."""
        with contextlib.suppress(OSError):
            names = sorted((each.name for each in self._folder.iterdir() if _ID.fullmatch(each.name)), reverse=True)
            return [job for name in names if (job := self._job(name)) is not None]
        return []

    def find(self, name: str) -> RunningJob:
        """Return one command; raise `NotFound` for an unknown id."""
        job = self._job(name) if _ID.fullmatch(name) else None
        if job is None:
            raise NotFound("Unknown command: its folder does not exist.")
        return job

    def of_run(self, run_folder: Path) -> RunningJob | None:
        """Return the newest command that runs, or ran, in the folder of a run."""
        return next((job for job in self.all() if job.run_folder == run_folder), None)

    def secret(self, job: RunningJob) -> str:
        """Return the secret that the server and the command share."""
        try:
            return read_text(job.folder / "secret", SwiftError)
        except SwiftError:
            raise NotFound("The secret file of this command is missing.") from None

    def stop(self, job: RunningJob, *, now: bool = False) -> None:
        """Send SIGTERM to a command; `now` kills it."""
        if not job.alive or job.process is None or not lives(job.process, job.process_began):
            raise UsageError("This command has already ended.")
        job_runner.write(job.folder / STOPPING, {"at": time.time(), "now": now})
        end_process(job.process, now=now)

    def _job(self, name: str) -> RunningJob | None:
        folder = self._folder / name
        record = read_record(folder / job_runner.JOB, JobRecord)
        if record is None:
            return None
        started = read_record(folder / job_runner.STARTED, StartRecord)
        alive = started is not None and lives(started.runner, started.runner_began)
        # Read after checking the runner, which writes it before it ends.
        ended = read_record(folder / job_runner.ENDED, EndRecord)
        stopping = read_record(folder / STOPPING, StopRecord)
        state, cause = _state(record, ended, started=started is not None, alive=alive)
        if state == "died" and stopping is not None and stopping.now:
            state, cause = "stopped", "Killed on request."
        elif state == "completed" and stopping is not None and record.run_folder is None:
            state = "stopped"  # a server ends only when it is stopped
        return RunningJob(
            name,
            folder,
            record.kind,
            tuple(record.argv),
            None if record.run_folder is None else Path(record.run_folder),
            record.requested,
            state,
            None if started is None else started.process,
            None if started is None else started.began,
            None if ended is None else ended.code,
            cause,
            None if ended is None else ended.at,
            stopping is not None,
            read_record(folder / "facts.json", ChatFacts),
            0 if started is None else started.log_from,
        )


def _state(record: JobRecord, ended: EndRecord | None, *, started: bool, alive: bool) -> tuple[str, str]:
    """Return the state of a command, and the cause of its end."""
    if ended is not None:
        code = ended.code
        if code < 0 and -code not in (signal.SIGTERM, signal.SIGINT):
            return "died", job_runner.cause(ended.model_dump())
        if code in (-signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT):
            return "stopped", ""
        return ("completed", "") if code == 0 else ("failed", ended.problem)
    if not started:
        late = time.time() - record.requested > _STARTS
        return ("died", "The command did not start.") if late else ("starting", "")
    if alive:
        return "running", ""
    return "died", "The command and its runner ended without an exit code. Was the machine restarted?"


def lives(process: int, began: float | None) -> bool:
    """Return whether a process is alive and began at this time."""
    try:
        if psutil.Process(process).status() == psutil.STATUS_ZOMBIE:
            return False
    except psutil.Error:
        return False
    return began is None or job_runner.began(process) == began


def end_process(process: int, *, now: bool) -> None:
    """Send SIGTERM to a process; `now` sends SIGKILL to it and its children."""
    try:
        first = psutil.Process(process)
        if not now:
            first.send_signal(signal.SIGTERM)
            return
        for each in [*first.children(recursive=True), first]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    except psutil.NoSuchProcess:
        raise UsageError("This command has already ended.") from None
    except psutil.AccessDenied:
        raise UsageError("This process belongs to another user of this machine: only that user can stop it.") from None
