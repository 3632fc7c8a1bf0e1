"""Damaged files of runs and commands (pipes, devices, invalid content) do not affect others."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import typed
from run_folders import add_lines, line_of, summary_of, write_run

from swift.errors import SwiftError
from swift.untrusted import time_limit
from swift_ui.acting.jobs import JOBS_FOLDER, JobStore
from swift_ui.acting.runs import RunActions
from swift_ui.acting.sessions import view_of
from swift_ui.looking import lines as of_lines
from swift_ui.looking.events import RunEvents
from swift_ui.looking.holder import holder_of
from swift_ui.looking.lines import RunLines
from swift_ui.looking.state import StateReader

GOOD, DAMAGED = "20260101-000000-000000-00000001", "20260101-000000-000000-00000002"
COMMAND: dict[str, dict[str, Any]] = {
    "job.json": {"argv": ["chat", "model"], "kind": "chat", "run_folder": None, "requested": 1.0},
    "started.json": {"process": 2**22 + 17, "began": 1.0, "runner": 2**22 + 18, "runner_began": 1.0, "log_from": 0},
    "facts.json": {"port": 1, "name": "model", "multi_turn": True, "images": False},
    "ended.json": {"code": 0, "at": 1.0, "out_of_memory": False},
}


def pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def device(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/dev/zero")


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(content)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Ends a test that waits for a pipe."""
    with time_limit(120.0, SwiftError("It hangs.")):
        yield


@pytest.mark.parametrize("damage", [pipe, device, holding(b"\xff" * 1000)])
def test_damaged_lock_has_no_holder(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    folder = write_run(tmp_path / "m" / "v0", [line_of(1)])
    damage(folder / ".lock")
    with time_limit(5.0, SwiftError("It hangs.")):
        assert holder_of(folder) is None


@pytest.mark.parametrize("file", ["args.json", "config.yaml"])
@pytest.mark.parametrize(
    "damage",
    [pipe, holding(b"[" * 100_000), holding(b"a: caf\xe9\n"), holding(b'{"a": ' + b"9" * 5000 + b"}")],
    ids=["a pipe", "deep", "Latin-1", "digits"],
)
def test_run_with_damaged_settings_has_actions(tmp_path: Path, file: str, damage: Callable[[Path], object]) -> None:
    folder = write_run(tmp_path / "m" / "v0", [line_of(1)])
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "manifest.json").write_text("{}")
    damage(folder / file)
    with time_limit(20.0, SwiftError("It hangs.")):
        found = RunActions.of(folder, JobStore(tmp_path))
    assert [each.name for each in found.checkpoints] == ["checkpoint-1"]
    assert "--nproc" not in found.resume


def test_endless_line_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_lines, "LONG", 1 << 10)
    monkeypatch.setattr(of_lines, "TOGETHER", 1 << 10)
    folder = write_run(tmp_path / "m" / "v0", [line_of(1)])
    lines = RunLines(folder)
    assert [line["step"] for line in lines.update()] == [1]
    with (folder / "logging.jsonl").open("ab") as file:
        file.write(b"0" * 10_000)
    assert lines.update() == []
    before = lines.offset
    assert before > 9000
    add_lines(folder, [{}, line_of(2)])
    assert [line["step"] for line in lines.update() if line] == [2]


def test_new_lines_with_invalid_json_values_are_sent(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "m" / "v0", [line_of(1)])

    async def read() -> bytes:
        events = aiter(RunEvents(folder, StateReader(), None))
        heard = b""
        while b"event: state" not in heard:
            heard += await anext(events)
        add_lines(folder, [line_of(2, loss=float("nan"))])
        while b"event: lines" not in heard:
            heard += await anext(events)
        return heard

    data = asyncio.run(read()).rpartition(b"data: ")[2]

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    (line,) = json.loads(data, parse_constant=refuse)["lines"]
    assert (line["step"], line["loss"]) == (2, None)


@pytest.mark.parametrize(
    ("ranks", "settings", "message"),
    [
        ({"own_seconds": "long"}, {}, ""),
        ({"own_seconds": 10**400}, {}, ""),
        ({"host": "[/x]", "[/y]": 1}, {}, ""),
        ({"host": "\x1b[2J\x1bc"}, {}, ""),
        ({}, {"model.path": "\x1b[2J\ud800", "tuner.kind": "\x9b2J"}, ""),
        ({}, {}, "\x1b[2J\x1bc[/x]"),
    ],
)
def test_run_text_cannot_control_terminal(
    tmp_path: Path, ranks: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    """Control characters of a run's strings are not printed."""
    rows = [{"rank": 0, "host": "a", "own_seconds": 1.0, **ranks}, {"rank": 1, "host": "b", "own_seconds": 1.0}]
    ends = [summary_of("failed", 1, message)]
    folder = write_run(tmp_path / "m" / "v0", [line_of(1, ranks=rows), *ends], settings=settings)
    ended = typed(["watch", str(folder), "--once"], tmp_path)
    assert ended.code == 1
    assert "m/v0  failed" in ended.output
    assert all(letter == "\n" or letter.isprintable() for letter in ended.output)


def test_a_table_of_very_many_processes_is_cut(tmp_path: Path) -> None:
    rows = [{"rank": rank, "own_seconds": 1.0 + (rank == 900)} for rank in range(1000)]
    folder = write_run(tmp_path / "m" / "v0", [line_of(1, ranks=rows)])
    output = typed(["watch", str(folder), "--once"], tmp_path).output
    assert "900" in output  # the slowest
    assert "899" not in output
    assert "and 743 more" in output


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *((file, pipe) for file in COMMAND),
        ("job.json", device),
        ("job.json", holding(b"[" * 100_000)),
        *(
            (file, holding(json.dumps({**COMMAND[file], key: value}).encode()))
            for file, key, value in (
                ("job.json", "argv", []),
                ("job.json", "argv", [1]),
                ("job.json", "requested", None),
                ("job.json", "run_folder", "\ud800"),
                ("started.json", "runner", "1"),
                ("started.json", "runner", -1),
                ("started.json", "log_from", 10**30),
                ("facts.json", "name", float("nan")),
                ("facts.json", "port", "1/x"),
                ("ended.json", "code", "0"),
                ("ended.json", "at", float("inf")),
            )
        ),
    ],
)
def test_a_damaged_command_hides_no_other(tmp_path: Path, file: str, damage: Callable[[Path], object]) -> None:
    for name in (GOOD, DAMAGED):
        (tmp_path / JOBS_FOLDER / name).mkdir(parents=True)
        for each, content in COMMAND.items():
            (tmp_path / JOBS_FOLDER / name / each).write_text(json.dumps(content))
        (tmp_path / JOBS_FOLDER / name / "log.txt").write_text("hello\n")
    damage(tmp_path / JOBS_FOLDER / DAMAGED / file)
    with time_limit(5.0, SwiftError("It hangs.")):
        found = {job.id: job for job in JobStore(tmp_path).all()}
        assert all(job.log() == "hello\n" and json.dumps(view_of(job), allow_nan=False) for job in found.values())
    assert found[GOOD].state == "completed"
    assert (DAMAGED in found) == (file != "job.json")
