"""Whose error the user reads when several workers fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from swift.processes.reports import Failure, first_error, first_report

NOW = 1_000_000.0


def says(logs: Path, local_rank: int, message: str, *, exit_code: int = 1, time: float = NOW) -> None:
    folder = logs / "swift_x" / "attempt_0" / str(local_rank)
    folder.mkdir(parents=True)
    swift = {"message": message, "exit_code": exit_code, "time": time}
    (folder / "error.json").write_text(json.dumps({"message": {"message": message, "swift": swift}}))


def test_the_earliest_report_is_the_cause_with_its_exit_code(tmp_path: Path) -> None:
    says(tmp_path, 0, "Connection closed by peer", time=NOW + 0.2)
    says(tmp_path, 1, "Row 7 is damaged.", exit_code=2)
    error = first_error({0: Failure(0, 1, NOW), 1: Failure(1, 2, NOW)}, tmp_path)
    assert (str(error), error.exit_code) == ("Row 7 is damaged.", 2)


def test_killed_worker_is_cause_of_lost_connections(tmp_path: Path) -> None:
    """A killed worker is the cause of the lost connections that others report."""
    says(tmp_path, 0, "Connection closed by peer")
    error = first_error({0: Failure(0, 1, NOW), 1: Failure(1, -signal.SIGKILL, NOW + 1)}, tmp_path)
    assert "Process 1 was killed by SIGKILL" in str(error)
    assert error.exit_code == 1


def test_a_worker_that_the_launcher_had_to_kill_is_not_the_cause(tmp_path: Path) -> None:
    says(tmp_path, 1, "Row 7 is damaged.")
    ends = {0: Failure(0, -signal.SIGKILL, NOW + 31), 1: Failure(1, 1, NOW)}
    assert str(first_error(ends, tmp_path)) == "Row 7 is damaged."


def test_worker_lost_to_peer_is_not_root_cause(tmp_path: Path) -> None:
    """A worker that died of the loss of its peer is not the cause."""
    says(tmp_path, 1, "Row 7 is damaged.")
    for end in (-signal.SIGABRT, -signal.SIGTERM, 143):
        ends = {0: Failure(0, end, NOW - 1), 1: Failure(1, 1, NOW)}
        assert str(first_error(ends, tmp_path)) == "Row 7 is damaged."


def test_last_lines_of_silent_worker_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "swift_x" / "attempt_0" / "1"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text("Fatal Python error: something\n")
    error = first_error({5: Failure(1, -signal.SIGSEGV, NOW)}, tmp_path)
    assert "Process 5 was ended by SIGSEGV" in str(error)
    assert "Fatal Python error" in str(error)


def test_stopped_workers_report_nothing(tmp_path: Path) -> None:
    ends = {0: Failure(0, 143, NOW), 1: Failure(1, -signal.SIGTERM, NOW)}
    assert first_report(ends, tmp_path) is None
    says(tmp_path, 1, "The disk is full.")
    assert str(first_report(ends, tmp_path)) == "The disk is full."


FAILING = """
from swift.errors import ConfigError
from swift.processes import reports
reports.time.sleep = lambda seconds: print(seconds)
with reports.reported_errors():
    raise {error}
"""
LOST = "RuntimeError('[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1234')"


def failing(error: str, **environment: str) -> tuple[int, str, float]:
    """Exit code, words, and the seconds that a process holds back which fails in this way."""
    command = [sys.executable, "-c", FAILING.format(error=error)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, float(done.stdout or 0)


def test_peer_loss_is_not_root_cause(tmp_path: Path) -> None:
    """The loss of a peer never outranks the error that caused it."""
    # The process that fails first takes its connections down before it reports.
    for rank, deed in enumerate((LOST, "ValueError('a cable fell out')")):
        folder = tmp_path / "swift_x" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        variables = {"RANK": str(rank), "SWIFT_WORKER": "1", "TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}
        assert failing(deed, **variables) == (1, "", 0)
    error = first_error({0: Failure(0, 1, NOW), 1: Failure(1, 1, NOW)}, tmp_path)
    assert "Process 1 failed" in str(error)
    assert "ValueError: a cable fell out" in str(error)


def test_third_party_launcher_shows_error_first() -> None:
    mistake = "ConfigError('No.', hint='Type yes.')"
    code, words, first = failing(mistake, RANK="0", WORLD_SIZE="2")
    assert (code, words, first) == (2, "Error: No.\nType yes.\n", 0)
    code, words, second = failing(mistake, RANK="1", WORLD_SIZE="2")
    assert (code, words) == (2, "Error: No.\nType yes.\n")
    code, words, last = failing(LOST, RANK="0", WORLD_SIZE="2")
    assert code == 1
    assert words.startswith("Error: Process 0 lost the connection")
    assert "Traceback" not in words
    assert first < second < last
