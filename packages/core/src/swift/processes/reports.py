"""How an error of one process reaches the user: once, in its own words, with its own exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from swift.errors import SHOW_TRACEBACK, SwiftError
from swift.files import replace_file
from swift.plugins.blame import keep_traceback
from swift.processes.group import rank_or_zero
from swift.processes.signals import is_worker

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Environment variable: where torch's elastic launcher looks for what a worker has to say."""

_STOPPED = "stopped"
_HOLD_BACK = 5.0
_LOST_PEER = ("closed by peer", "reset by peer", "Broken pipe", "remote process exited")
"""What gloo, NCCL and torch's stores say of a process that is gone."""
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)
_KILLING_TAKES = 30.0
"""Seconds that the elastic launcher gives its workers before it kills them."""


@contextmanager
def reported_errors() -> Iterator[None]:
    """In a worker: leave the error where the launcher finds it, so that the user reads it once.

    Under a foreign launcher nobody reads that file, so the failing process prints its error itself. Most errors strike
    all processes alike, and the loss of a peer has its cause elsewhere: those who have no news hold back for a moment,
    in which the launcher ends them.
    """
    try:
        yield
    except Exception as error:
        rank = rank_or_zero()
        worker = is_worker()
        if not worker and os.environ.get("WORLD_SIZE", "1") == "1":
            raise
        echo = _is_echo(error)
        code = error.exit_code if isinstance(error, SwiftError) and not echo else 1
        message = _message(error, rank, echo=echo)
        _write(message, code, echo=echo)
        if not worker:
            time.sleep(2 * _HOLD_BACK if echo else _HOLD_BACK if rank else 0)
            sys.stderr.write(f"Error: {message}\n")
        # Not sys.exit: threads of a dead process group would keep the interpreter alive.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end_with(message: str, *, speaks: bool) -> NoReturn:
    """End this process at once from any thread, its main one being stuck. One process of the run `speaks` for all."""
    _write(message, 1, echo=not speaks)
    if not is_worker():
        time.sleep(0 if speaks else _HOLD_BACK)
        if speaks:
            sys.stderr.write(f"Error: {message}\n")
            sys.stderr.flush()
    os._exit(1)


def _is_echo(error: BaseException | None) -> bool:
    """Return whether this is the loss of a peer, which failed or was killed, rather than an error of this process."""
    while error is not None:
        # An OSError is about a file or a terminal of this process.
        if not isinstance(error, OSError) and any(sign in str(error) for sign in _LOST_PEER):
            return True
        error = error.__cause__ or error.__context__
    return False


def _message(error: Exception, rank: int, *, echo: bool) -> str:
    if SHOW_TRACEBACK not in os.environ:
        if echo:
            return f"Process {rank} lost the connection to another process, which failed or was killed. See its error."
        if isinstance(error, SwiftError):
            keep_traceback(error)
            return str(error)
    return f"Process {rank} failed:\n{traceback.format_exc()}".rstrip()


def _write(message: str, code: int, *, echo: bool) -> None:
    path = os.environ.get(ERROR_FILE)
    if path:
        now = time.time()
        swift = {"message": message, "exit_code": code, "time": now + _KILLING_TAKES if echo else now}
        # The frame around it is what the elastic launcher insists on.
        frame = {"message": message, "extraInfo": {"timestamp": str(int(now)), "py_callstack": ""}}
        try:
            # Whole or not at all: the launcher may end this process meanwhile, and fails itself over half a file.
            replace_file(Path(path), json.dumps({"message": {**frame, "swift": swift}}))
        except OSError:  # a full disk, say
            if not echo:
                sys.stderr.write(f"Error: {message}\n")


def leave_note_of_stop(number: int) -> None:
    """In a worker that saved and ended early because of a signal: tell the launcher."""
    replace_file(Path(os.environ[ERROR_FILE]).with_name(_STOPPED), str(number))


def read_note_of_stop(logs: Path) -> int | None:
    """Return the signal that workers were stopped by, if they were."""
    notes = logs.glob(f"*/attempt_0/*/{_STOPPED}")
    return next((int(note.read_text()) for note in notes), None)


@dataclass(frozen=True)
class Failure:
    """How a worker ended."""

    local_rank: int
    exit_code: int
    """Negative: the signal that ended it."""
    seen: float
    """When the launcher saw it."""


def first_report(failures: Mapping[int, Failure], logs: Path) -> SwiftError | None:
    """Return the report of the first worker (by rank) that said why it failed."""
    reports = [report for failure in failures.values() if (report := _read(logs, failure.local_rank))]
    return min(reports, key=lambda report: report.time).error() if reports else None


def first_error(failures: Mapping[int, Failure], logs: Path) -> SwiftError:
    """Return the error of the worker that failed first: once it is gone the others fail too."""
    reports = {rank: _read(logs, failure.local_rank) for rank, failure in failures.items()}

    def moment(rank: int) -> float:
        report, failure = reports[rank], failures[rank]
        if report is not None:
            return report.time
        if -failure.exit_code in _FROM_OUTSIDE:
            # Peers report the lost connection before the launcher sees the loss. Where the launcher itself killed
            # the process, that was long after the first failure.
            return failure.seen - _KILLING_TAKES / 2
        # Told to stop, or brought down by the loss of a peer.
        return failure.seen + _KILLING_TAKES

    rank = min(failures, key=moment)
    report = reports[rank]
    return report.error() if report else _unexplained(rank, failures[rank], logs)


def _unexplained(rank: int, failure: Failure, logs: Path) -> SwiftError:
    code = failure.exit_code
    if code == -signal.SIGKILL:
        return SwiftError(
            f"Process {rank} was killed by SIGKILL.",
            hint="Most often the machine ran out of memory (see dmesg): lower --per_device_train_batch_size or "
            "--max_length, or start fewer processes.",
        )
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return SwiftError(f"Process {rank} {ended} without saying why.", hint=_tail(logs, failure.local_rank))


@dataclass(frozen=True)
class _Report:
    message: str
    exit_code: int
    time: float

    def error(self) -> SwiftError:
        error = SwiftError(self.message)
        error.exit_code = self.exit_code
        return error


def _read(logs: Path, local_rank: int) -> _Report | None:
    for path in logs.glob(f"*/attempt_0/{local_rank}/error.json"):
        try:
            return _Report(**json.loads(path.read_text(encoding="utf-8"))["message"]["swift"])
        except (ValueError, KeyError, TypeError):
            return None
    return None


def _tail(logs: Path, local_rank: int, lines: int = 15) -> str | None:
    """Return the last words of a worker that did not write to the terminal."""
    for path in logs.glob(f"*/attempt_0/{local_rank}/stderr.log"):
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) or None
    return None
