"""How runs stand, as the list shows it: read from their folders, whoever started them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from run_folders import GONE, add_lines, line_of, summary_of, write_run
from starlette.testclient import TestClient

from swift.train.run_folder import lock_run_folder
from swift_ui.settings import UiSettings


@pytest.fixture
def root(settings: UiSettings) -> Path:
    return settings.roots[0]


def shown(page: TestClient) -> dict[str, dict[str, Any]]:
    """The list by name of the run, in its order."""
    return {row["name"]: row for row in page.get("/api/runs").json()["runs"]}


@pytest.mark.parametrize("status", ["completed", "stopped", "failed"])
def test_a_run_that_ended_with_a_word_says_it(page: TestClient, root: Path, status: str) -> None:
    write_run(root / "m" / "v0", [line_of(5), summary_of(status, 5, "Because.")])
    state = shown(page)["v0"]["state"]
    assert (state["name"], state["cause"], state["step"], state["total_steps"]) == (status, "Because.", 5, 100)


def test_a_run_is_running_while_its_process_holds_the_folder_and_has_died_when_it_does_not(
    page: TestClient, root: Path
) -> None:
    folder = write_run(root / "m" / "v0", [line_of(5)], process=None)
    with lock_run_folder(folder):
        assert shown(page)["v0"]["state"]["name"] == "running"
    state = shown(page)["v0"]["state"]  # this process lives, and has let go of the folder without a last line
    assert state["name"] == "died"
    assert "without a word" in state["cause"]


def test_looking_at_a_run_never_takes_its_lock(page: TestClient, root: Path) -> None:
    folder = write_run(root / "m" / "v0", [line_of(5)])
    before = (folder / ".lock").stat()
    shown(page)
    after = (folder / ".lock").stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
    with lock_run_folder(folder):  # refused if anybody else held it
        assert shown(page)["v0"]["state"]["process"] == os.getpid()


def test_a_process_that_got_the_number_of_a_dead_run_is_not_that_run(page: TestClient, root: Path) -> None:
    folder = write_run(root / "m" / "v0", [line_of(5)], process=os.getpid())
    with (folder / ".lock").open():
        assert shown(page)["v0"]["state"]["name"] == "running"
        os.utime(folder / ".lock", (1_000_000_000, 1_000_000_000))  # taken before this process began
        assert shown(page)["v0"]["state"]["name"] == "died"


def test_a_run_that_is_resumed_is_running_although_its_lines_end_with_a_summary(page: TestClient, root: Path) -> None:
    folder = write_run(root / "m" / "v0", [line_of(5), summary_of("stopped", 5)], process=None)
    with lock_run_folder(folder):
        assert shown(page)["v0"]["state"]["name"] == "running"


def test_a_run_on_another_machine_is_running_until_it_falls_silent(page: TestClient, root: Path) -> None:
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
        ("step 1  loss 2\n", "without a word"),
    ],
)
def test_a_death_has_the_cause_that_the_log_tells(page: TestClient, root: Path, log: str, cause: str) -> None:
    folder = write_run(root / "m" / "v0", [line_of(5)])
    (folder / "log.txt").write_text(log)
    state = shown(page)["v0"]["state"]
    assert state["name"] == "died"
    assert cause in state["cause"]
    assert "\x1b" not in state["cause"]


def test_a_run_that_loads_its_model_is_there_before_it_wrote_anything(page: TestClient, root: Path) -> None:
    folder = root / "m" / "v0"
    folder.mkdir(parents=True)
    with lock_run_folder(folder):
        row = shown(page)["v0"]
        assert (row["state"]["name"], row["state"]["step"]) == ("running", 0)
        key = row["key"]
        assert page.get(f"/api/runs/{key}").status_code == 200
        assert page.get(f"/api/runs/{key}/series").json()["charts"] == []


def test_the_newest_run_is_first_and_runs_inside_runs_are_not_looked_for(page: TestClient, root: Path) -> None:
    for number, age in enumerate((300, 100, 200)):
        folder = write_run(root / "m" / f"v{number}", [line_of(5), summary_of("completed", 5)])
        os.utime(folder / ".lock", (time.time() - age,) * 2)
    write_run(root / "m" / "v0" / "checkpoint-5" / "inner", [line_of(5)])
    assert list(shown(page)) == ["v1", "v2", "v0"]


def test_a_half_written_last_line_is_not_read_yet(page: TestClient, root: Path) -> None:
    folder = write_run(root / "m" / "v0", [line_of(5), line_of(6)])
    with (folder / "logging.jsonl").open("a") as file:
        file.write('{"step": 7, "global_step/max_')
    assert shown(page)["v0"]["state"]["step"] == 6
    key = shown(page)["v0"]["key"]
    assert page.get(f"/api/runs/{key}/series").json()["series"]["loss"][0] == [5, 6]
    with (folder / "logging.jsonl").open("a") as file:
        file.write('steps": "7/100", "loss": 1.5}\n')
    assert page.get(f"/api/runs/{key}/series").json()["series"]["loss"] == [[5, 6, 7], [2.95, 2.94, 1.5]]


def test_no_process_has_the_number_that_these_tests_take_for_a_dead_one() -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(GONE, 0)
