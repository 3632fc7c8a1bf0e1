"""States of runs in the list."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from run_folders import add_lines, line_of, summary_of, write_run
from starlette.testclient import TestClient

from swift.train.run_folder import lock_run_folder
from swift_ui.options import UiSettings


@pytest.fixture
def root(settings: UiSettings) -> Path:
    return settings.roots[0]


def shown(page: TestClient) -> dict[str, dict[str, Any]]:
    """The list by name of the run, in its order."""
    return {row["name"]: row for row in page.get("/api/runs").json()["runs"]}


@pytest.mark.parametrize("status", ["completed", "stopped", "failed"])
def test_ended_run_shows_status(page: TestClient, root: Path, status: str) -> None:
    write_run(root / "m" / "v0", [line_of(5), summary_of(status, 5, "Because.")])
    state = shown(page)["v0"]["state"]
    assert (state["name"], state["cause"], state["step"], state["total_steps"]) == (status, "Because.", 5, 100)


def test_run_is_running_while_folder_is_locked(page: TestClient, root: Path) -> None:
    """A run is running while its process holds the folder and has died when it does not."""
    folder = write_run(root / "m" / "v0", [line_of(5)], process=None)
    with lock_run_folder(folder):
        assert shown(page)["v0"]["state"]["name"] == "running"
    state = shown(page)["v0"]["state"]  # this process lives, and has released the lock without a summary
    assert state["name"] == "died"
    assert "without an error message" in state["cause"]


def test_reading_a_run_does_not_lock_it(page: TestClient, root: Path) -> None:
    folder = write_run(root / "m" / "v0", [line_of(5)])
    before = (folder / ".lock").stat()
    shown(page)
    after = (folder / ".lock").stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    with lock_run_folder(folder):  # fails if the lock is held
        assert shown(page)["v0"]["state"]["process"] == os.getpid()


def test_reused_pid_is_not_the_dead_run(page: TestClient, root: Path) -> None:
    """A process that got the number of a dead run is not that run."""
    folder = write_run(root / "m" / "v0", [line_of(5)], process=os.getpid())
    with (folder / ".lock").open():
        assert shown(page)["v0"]["state"]["name"] == "running"
        os.utime(folder / ".lock", (1_000_000_000, 1_000_000_000))  # taken before this process began
        assert shown(page)["v0"]["state"]["name"] == "died"


def test_resumed_run_is_running_despite_summary(page: TestClient, root: Path) -> None:
    """A run that is resumed is running although its lines end with a summary."""
    folder = write_run(root / "m" / "v0", [line_of(5), summary_of("stopped", 5)], process=None)
    with lock_run_folder(folder):
        assert shown(page)["v0"]["state"]["name"] == "running"


def test_remote_run_is_running_until_silent(page: TestClient, root: Path) -> None:
    """A run on another machine is running until it falls silent."""
    folder = write_run(root / "m" / "v0", [line_of(5)], process=None)
    (folder / ".lock").write_text("process 7 on another-machine\n")
    assert shown(page)["v0"]["state"]["name"] == "running"
    for name in (".lock", "logging.jsonl"):
        os.utime(folder / name, (time.time() - 3600,) * 2)
    add_lines(folder, [])
    os.utime(folder / "logging.jsonl", (time.time() - 3600,) * 2)
    assert shown(page)["v0"]["state"]["name"] == "silent"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            "Traceback\ntorch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n",
            "Out of memory: torch.OutOfMemoryError",
        ),
        ("\x1b[31mError:\x1b[0m The loss is not finite.\nLower it.\n", "Error: The loss is not finite."),
        (
            "step 1\nEnded by SIGKILL: the machine was out of memory.\n",
            "Ended by SIGKILL: the machine was out of memory.",
        ),
        ("step 1  loss 2\n", "without an error message"),
    ],
)
def test_died_run_shows_cause_from_log(page: TestClient, root: Path, log: str, cause: str) -> None:
    folder = write_run(root / "m" / "v0", [line_of(5)])
    (folder / "log.txt").write_text(log)
    state = shown(page)["v0"]["state"]
    assert state["name"] == "died"
    assert cause in state["cause"]
    assert "\x1b" not in state["cause"]


def test_loading_run_is_listed_before_output(page: TestClient, root: Path) -> None:
    """A run that loads its model is there before it wrote anything."""
    folder = root / "m" / "v0"
    folder.mkdir(parents=True)
    with lock_run_folder(folder):
        row = shown(page)["v0"]
        assert (row["state"]["name"], row["state"]["step"]) == ("running", 0)
        key = row["key"]
        assert page.get(f"/api/runs/{key}").status_code == 200
        assert page.get(f"/api/runs/{key}/series").json()["charts"] == []


def test_newest_run_is_first_and_nested_runs_are_skipped(page: TestClient, root: Path) -> None:
    """The newest run is first and runs inside runs are not looked for."""
    for number, age in enumerate((300, 100, 200)):
        folder = write_run(root / "m" / f"v{number}", [line_of(5), summary_of("completed", 5)])
        os.utime(folder / ".lock", (time.time() - age,) * 2)
    write_run(root / "m" / "v0" / "checkpoint-5" / "inner", [line_of(5)])
    assert list(shown(page)) == ["v1", "v2", "v0"]


def test_partial_last_line_is_not_read(page: TestClient, root: Path) -> None:
    folder = write_run(root / "m" / "v0", [line_of(5), line_of(6)])
    with (folder / "logging.jsonl").open("a") as file:
        file.write('{"step": 7, "global_step/max_')
    assert shown(page)["v0"]["state"]["step"] == 6
    key = shown(page)["v0"]["key"]
    assert page.get(f"/api/runs/{key}/series").json()["series"]["loss"][0] == [5, 6]
    with (folder / "logging.jsonl").open("a") as file:
        file.write('steps": "7/100", "loss": 1.5}\n')
    assert page.get(f"/api/runs/{key}/series").json()["series"]["loss"] == [[5, 6, 7], [2.95, 2.94, 1.5]]
