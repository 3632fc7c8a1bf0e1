"""What users get wrong, through the command line: one clear sentence, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from processes import on_processes, succeeded
from tiny_runs import conversations, write_jsonl

from swift.cli.main import run
from swift.hookspecs import hookimpl
from swift.observers.jsonl import JsonlObserver
from swift.train.run_folder import lock_run_folder

GOOD = conversations(8)
QUESTION = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Path) -> Path:
    """A working folder with a good model and a good data set in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny, tmp_path / "model")
    write_jsonl(tmp_path / "data.jsonl", GOOD)
    return tmp_path


def swift(command: str, *flags: str, model: str = "model", dataset: str = "data.jsonl") -> int:
    """A small run, but for the flags; `dataset` is left out when empty."""
    data = ("--dataset", dataset) if dataset else ()
    small = ["--report_to", "jsonl", "--backend.device", "cpu", "--data.workers", "1"]
    if "--max_steps" not in flags:
        small += ["--max_steps", "2"]
    return run([command, "--model", model, *data, *small, *flags])


def check_refused(
    code: int, sentences: tuple[str, ...], capsys: pytest.CaptureFixture[str], folder: Path, *, expected: int = 2
) -> None:
    printed = capsys.readouterr()
    assert printed.err.count("Error: ") == 1, printed.err
    message = printed.err.partition("Error: ")[2]
    for sentence in sentences:
        assert sentence in message
    assert "Traceback" not in printed.out + printed.err
    assert code == expected
    assert not (folder / "output").exists()
    assert not dist.is_initialized()


def lines(*rows: Any) -> Callable[[Path], None]:
    """Writes these rows as the data set."""
    return lambda path: write_jsonl(path, rows) and None


def text(content: str) -> Callable[[Path], None]:
    """Writes this text as the data set."""
    return lambda path: path.write_text(content) and None


def talk(*messages: dict[str, str]) -> dict[str, Any]:
    return {"messages": list(messages)}


# How the data set is made, the flags, and what is said. `tests/malformed` has what `swift config show` says of others.
DATA: dict[str, tuple[Callable[[Path], None], list[str], tuple[str, ...]]] = {
    "empty": (text(""), [], ("data.jsonl", "is empty")),
    "malformed line": (text(json.dumps(GOOD[0]) + '\n{"messages": [\n'), [], ("data.jsonl:2",)),
    "roles out of order": (
        lines(talk(QUESTION, QUESTION, ANSWER)),
        [],
        ("can be trained on", "roles out of order", "data.jsonl:1"),
    ),
    "one sample out of order, strictly": (lines(*GOOD, talk(ANSWER, QUESTION)), ["--strict"], ("data.jsonl:9",)),
    "all too long": (lines(*GOOD), ["--max_length", "8"], ("can be trained on", "too long", "data.jsonl:1")),
}


@pytest.mark.parametrize(("case", "streaming"), [*((case, True) for case in DATA), ("malformed line", False)])
def test_unusable_data_exits_with_message(
    here: Path, capsys: pytest.CaptureFixture[str], case: str, streaming: bool
) -> None:
    make, flags, sentences = DATA[case]
    make(here / "data.jsonl")
    code = swift("sft", *flags, *(["--streaming"] if streaming else []))
    check_refused(code, sentences, capsys, here)


@pytest.mark.parametrize("flags", [[], ["--streaming"]], ids=["read", "streamed"])
def test_unusable_samples_are_counted(here: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    too_long = talk(QUESTION, {"role": "assistant", "content": "a" * 500})
    write_jsonl(here / "data.jsonl", [*GOOD, talk(ANSWER, QUESTION), too_long])
    assert swift("sft", "--max_length", "200", *flags) == 0
    printed = capsys.readouterr().out
    assert "data.jsonl:9" in printed
    assert "data.jsonl:10" in printed
    (log,) = (here / "output").glob("*/*/logging.jsonl")
    summary = json.loads(log.read_text().splitlines()[-1])
    assert sum(summary["unusable_samples"].values()) == 2


def test_full_disk_while_saving_fails(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def on_a_full_disk() -> int:
        import resource

        # A checkpoint of the adapters fits; of all weights it does not.
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        flags = ("--train_type", "full", "--save_steps", "1", "--logging.run_name", "run")
        return swift("sft", *flags)

    ((code,),) = [succeeded(answers) for answers in on_processes(1, on_a_full_disk)]
    printed = capfd.readouterr()
    assert "could not be written to" in printed.err
    assert "larger than this system allows" in printed.err
    assert "Traceback" not in printed.out + printed.err
    assert code == 1
    folder = here / "output" / "model" / "run"
    assert not list(folder.glob("checkpoint-*"))
    assert not (folder / "last-checkpoint").is_symlink()
    last = json.loads((folder / "logging.jsonl").read_text().splitlines()[-1])
    assert last["status"] == "failed"


def test_failed_run_reports_reason_and_unlocks_folder(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift.errors import TrainingError
    from swift.train.loop import Loop

    def failing(*_: Any) -> None:
        raise TrainingError("It broke.")

    def failing_too(self: JsonlObserver) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Loop, "make_step", failing)
    monkeypatch.setattr(JsonlObserver, "swift_run_end", hookimpl(failing_too))
    assert swift("sft", "--logging.run_name", "run") == 1
    printed = capsys.readouterr()
    assert "Error: It broke." in printed.err
    assert "no room" in printed.out
    with lock_run_folder(here / "output" / "model" / "run"):
        pass
