"""Commands that the dashboard starts: argv of forms, refusals, and jobs that outlive the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from swift.errors import DataError, UsageError
from swift.forms import form_of
from swift_ui.acting import job_runner
from swift_ui.acting.argv import argv_of
from swift_ui.acting.chat_server import parse_message, parse_request
from swift_ui.acting.jobs import JobStore, RunningJob
from swift_ui.acting.runs import RunActions
from swift_ui.looking.index import key_of
from swift_ui.options import UiSettings

IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
"""One red pixel."""
FIELDS = [field for section in form_of("sft") for field in section.fields]


def until(store: JobStore, job: RunningJob, state: str) -> RunningJob:
    """Returns the job once it is in a state."""
    end = time.monotonic() + 60
    while (found := store.find(job.id)).state != state:
        assert time.monotonic() < end, found
        time.sleep(0.01)
    return found


def test_form_becomes_argv() -> None:
    values = {"model.path": "m", "data.train": ["a.jsonl", "b c.jsonl"], "data.packing": True, "tuner.rank": ""}
    assert argv_of("sft", FIELDS, values, "--system 'Be brief.' ; rm -rf /") == [
        *("sft", "--model", "m", "--dataset", "a.jsonl", "b c.jsonl", "--packing", "true"),
        *("--system", "Be brief.", ";", "rm", "-rf", "/"),
    ]


@pytest.mark.parametrize(
    "request_body",
    [
        {},
        {"messages": 5},
        {"messages": []},
        {"messages": [None]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": [5]}]},
        *(
            {"messages": [{"role": "user", "content": "Hi"}], **odd}
            for odd in (
                {"max_tokens": -1},
                {"max_tokens": float("inf")},
                {"temperature": float("nan")},
                {"temperature": [1]},
                {"top_p": 2},
                {"seed": -1},
                {"seed": 10**30},
            )
        ),
    ],
)
def test_malformed_question_is_refused_before_model(request_body: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"^(A message or a setting|The request has no messages)"):
        parse_request(request_body)


def test_a_value_never_becomes_a_flag() -> None:
    values = {"model.path": "--trust_remote_code", "data.train": ["--config", "x.yaml"]}
    argv = argv_of("sft", FIELDS, values)
    assert argv == ["sft", "--model=--trust_remote_code", "--dataset=--config", "--dataset=x.yaml"]
    export = [field for section in form_of("export") for field in section.fields]
    with pytest.raises(UsageError, match="instead of the flag"):
        argv_of("export", export, {"checkpoint": "--push"})


@pytest.mark.parametrize(
    ("values", "further", "reason"),
    [
        ({"model.trust_remote_code": "true"}, "", "would run third-party code"),
        ({}, "--trust-remote-code", "would run third-party code"),
        ({"logging.output": "/tmp"}, "", "The dashboard writes nowhere else"),
        ({"logging.output": "../.."}, "", "The dashboard writes nowhere else"),
        ({"checkpoint.copy_to": "file:///tmp"}, "", "would copy files to file:///tmp"),
        ({"tuner.rank": "many"}, "", "--lora_rank must be a whole number, not 'many'."),
        ({}, "--config /etc/passwd", "passwd"),
    ],
)
def test_terminal_only_options_are_refused(
    page: TestClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    values: dict[str, str],
    further: str,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.jsonl").write_text('{"text": "a"}\n')
    common = {"model.path": "far/away", "data.train": ["d.jsonl"], "logging.output": "output"}
    request_body = {"command": "sft", "values": {**common, **values}, "further": further}
    shown = page.post("/api/check", json=request_body).json()
    assert reason in shown["refused"]["message"]
    assert page.post("/api/jobs", json=request_body).status_code == 400
    assert page.get("/api/jobs").json() == {"jobs": []}


@pytest.mark.parametrize("command_name", ["plugins", "data", "ui", "--help", "", None, ["sft"]])
def test_other_commands_are_not_started(page: TestClient, command_name: object) -> None:
    assert page.post("/api/jobs", json={"command": command_name, "values": {}}).status_code == 400


def test_a_server_for_other_machines_is_not_started(page: TestClient) -> None:
    response = page.post("/api/jobs", json={"command": "serve", "values": {"model": "m", "host": "0.0.0.0"}})
    assert "other machines can reach" in response.json()["error"]["message"]


def test_command_survives_server_and_end_is_known(tmp_path: Path) -> None:
    """A command goes on without the server and its end is known."""
    program = [sys.executable, "-c", "import sys; print('hello', flush=True); sys.exit(3)"]
    job = JobStore(tmp_path).start(["sft", "--model", "m"], program=program)
    found = until(JobStore(tmp_path), job, "failed")  # another server would know no more than the folder
    assert found.code == 3
    assert found.log() == "hello\n"
    assert found.argv == ("sft", "--model", "m")


def test_killed_command_shows_cause_and_stopped_is_not_dead(tmp_path: Path) -> None:
    """A killed command shows its cause; a stopped one is not shown as died."""
    store = JobStore(tmp_path)
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    first, second, third = (until(store, store.start(["sft"], program=sleeping), "running") for _ in range(3))
    assert first.process is not None
    os.kill(first.process, signal.SIGKILL)
    assert until(store, first, "died").cause == "Ended by signal 9 (SIGKILL) without an error message."
    store.stop(second)
    assert until(store, second, "stopped").cause == ""
    store.stop(third, now=True)
    until(store, third, "stopped")
    with pytest.raises(UsageError, match="already ended"):
        store.stop(third)


def test_command_log_is_also_in_run_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = (
        f"import pathlib, time; run = pathlib.Path({str(run)!r}); run.mkdir(exist_ok=True); print('step', flush=True); "
        "(run / 'args.json').write_text('{}'); time.sleep(600)"
    )
    store = JobStore(tmp_path)
    for times in (1, 2):  # the second goes on in the same folder
        job = until(store, store.start(["sft"], program=[sys.executable, "-c", script], run_folder=run), "running")
        end = time.monotonic() + 60
        while not (run / "log.txt").exists() or (run / "log.txt").read_text().count("step\n") < times:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert store.of_run(run) == store.find(job.id)
        assert RunActions.of(run, store).alive
        store.stop(job)
        until(store, job, "stopped")
    assert store.find(job.id).log() == "step\n"


def test_run_from_terminal_is_stopped_by_lock_owner(page: TestClient, settings: UiSettings) -> None:
    """A run that a terminal has started is stopped by the process that locks it."""
    run = settings.roots[0] / "model" / "run"
    (run / "checkpoint-3").mkdir(parents=True)
    (run / "checkpoint-3" / "manifest.json").write_text("{}")
    (run / "args.json").write_text(json.dumps({"environment": {"processes": 2}}))
    (run / "config.yaml").write_text("checkpoint: {optimizer_state: false}\n")
    script = (
        "import fcntl, os, sys, time; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX); "
        "lock.write(f'process {os.getpid()} on {os.uname().nodename}\\n'); lock.flush(); "
        "print(flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(run / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as training:
        assert training.stdout is not None
        training.stdout.readline()
        address = f"/api/runs/{key_of(run)}"
        assert page.get(f"{address}/actions").json()["alive"] is True
        assert page.post(f"{address}/resume", json={}).status_code == 400
        assert page.post(f"{address}/stop", json={}).json() == {"stopping": True}
        assert training.wait() == -signal.SIGTERM
    found = page.get(f"{address}/actions").json()
    assert found["alive"] is False
    assert found["resume"] == (
        f"swift train --config {run}/config.yaml --resume_from_checkpoint {run}/checkpoint-3 --resume_only_model true "
        "--nproc 2"
    )
    assert page.post(f"{address}/stop", json={}).status_code == 400


def test_out_of_memory_kill_is_named() -> None:
    assert (
        job_runner.cause({"code": -9, "out_of_memory": True})
        == "Ended by signal 9 (SIGKILL): the machine was out of memory."
    )


def test_chat_images_must_be_data_urls() -> None:
    part = {"type": "image_url", "image_url": {"url": IMAGE}}
    message = {"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}
    assert [each["type"] for each in parse_message(message)["content"]] == ["image", "text"]
    for url in ("/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/a.png", "data:text/html,x"):
        part["image_url"] = {"url": url}
        with pytest.raises(UsageError, match="Images must be passed"):
            parse_message(message)
