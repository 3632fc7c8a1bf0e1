"""Copies of a run behind a URL: made during the run, kept in step with it, and gone on from by another machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tiny_runs import conversations, run_training

from swift.checkpoint.copies import newest_copy
from swift.checkpoint.folders import find_checkpoint
from swift.checkpoint.weights_location import find_weights
from swift.errors import CheckpointError, ConfigError, ExportError
from swift.remote.put import put
from swift.remote.queue import CopyQueue, hold

ROWS = conversations(16)
NAMED = {"logging.run_name": "mine", "checkpoint.save_steps": 2, "checkpoint.keep": 1, "train.max_steps": 6}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def checkpoints(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.glob("checkpoint-*"))


def test_run_is_copied_and_resumes_from_copy(tied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run is copied as it goes and goes on where nothing but the copy is left."""
    away = tmp_path / "away"
    copied = {**NAMED, "checkpoint.copy_to": f"file://{away}", "logging.report_to": ["jsonl"]}
    first = run_training(tied, tmp_path / "out", ROWS, copied)
    below = first.folder.relative_to(tmp_path / "out")
    copy = away / below
    assert checkpoints(copy) == ["checkpoint-6"]
    assert contents(copy / "checkpoint-6") == contents(first.folder / "checkpoint-6")
    assert (copy / "args.json").read_bytes() == (first.folder / "args.json").read_bytes()
    assert json.loads((copy / "logging.jsonl").read_text().splitlines()[-1])["status"] == "completed"
    assert not (first.folder / ".copies").exists()
    shutil.rmtree(tmp_path / "out")
    again = {**copied, "train.max_steps": 10, "checkpoint.resume": "auto"}
    second = run_training(tied, tmp_path / "out", ROWS, again)
    assert second.folder == first.folder
    assert sorted(second.lines) == list(range(1, 11))  # the lines before it came back as well
    assert "at step 6 of 10" in capsys.readouterr().out
    assert checkpoints(copy) == ["checkpoint-10"]


def test_a_url_of_a_run_stands_for_its_newest_checkpoint(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = run_training(tied, tmp_path / "out", ROWS, {**NAMED, "checkpoint.keep": None})
    url = f"file://{run.folder}"
    assert find_checkpoint(url).name == "checkpoint-6"
    assert contents(find_checkpoint(f"{url}/checkpoint-2")) == contents(run.folder / "checkpoint-2")
    more = {"logging.run_name": "other", "train.max_steps": 8}
    far = run_training(tied, tmp_path / "one", ROWS, {**NAMED, **more, "checkpoint.resume": url})
    near = run_training(tied, tmp_path / "two", ROWS, {**NAMED, **more, "checkpoint.resume": str(run.folder)})
    assert [far.lines[step]["loss"] for step in (7, 8)] == [near.lines[step]["loss"] for step in (7, 8)]
    assert Path(find_weights(url).weights.path or "").name == "checkpoint-6"
    with pytest.raises(CheckpointError, match=r"'file://.* does not exist"):
        find_checkpoint(f"{url}-of-yesterday")


def test_failed_copy_warns_and_training_continues(
    tied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "away").write_text("a file where a folder should be")
    run = run_training(tied, tmp_path, ROWS, {**NAMED, "checkpoint.copy_to": f"file://{tmp_path / 'away'}"})
    assert len(run.losses) == 6
    said = capsys.readouterr().out
    assert "checkpoint-2 was not copied: 'file://" in said
    assert "cannot be written" in said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checkpoint.copy_to": "ftp://host/runs"}, "Unknown protocol ftp://"),
        ({"checkpoint.copy_to": "/mnt/runs"}, "'/mnt/runs' is not a URL"),
        ({"logging.report_to": ["copies"]}, "cannot name 'copies'"),
    ],
)
def test_where_to_copy_is_refused_before_a_model_is_loaded(
    tied: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_training(tied, tmp_path, ROWS, {**NAMED, **settings})


def test_a_folder_is_never_whole_before_all_of_it_has_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    folder = tmp_path / "checkpoint-4"
    (folder / "state").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "state" / "z.safetensors").write_bytes(b"weights")
    put(folder, "memory://runs/one/checkpoint-4")
    assert newest_copy("memory://runs/one") == "memory://runs/one/checkpoint-4"
    whole = type(memory).put_file

    def broken(system: Any, local: str, remote: str, **more: Any) -> None:
        assert not memory.exists("/runs/one/checkpoint-4/manifest.json")
        if local.endswith("z.safetensors"):
            raise OSError("the line broke")
        whole(system, local, remote, **more)

    monkeypatch.setattr(type(memory), "put_file", broken)
    with pytest.raises(ExportError, match="cannot be written: OSError: the line broke"):
        put(folder, "memory://runs/one/checkpoint-4")
    assert newest_copy("memory://runs/one") is None
    memory.store.clear()


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"name": folder.name}))
    (folder / "weights").write_bytes(b"weights")
    return folder


class Copied:
    """A run's folder whose checkpoints are copied to `away` below it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.away = folder / "away"
        self.said: list[str] = []
        self.queue = CopyQueue(
            f"file://{self.away}",
            wanted=lambda: {each.name for each in folder.glob("checkpoint-*")},
            files=lambda: [folder / "args.json"],
            say=self.said.append,
        )
        (folder / "args.json").write_text("{}")

    def save(self, name: str) -> None:
        made = checkpoint(self.folder / name)
        self.queue.add(made, hold(made, self.folder / ".copies" / name))

    def remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name)


def test_a_copy_that_failed_is_made_with_the_next_one(tmp_path: Path) -> None:
    run = Copied(tmp_path)
    run.away.write_text("a file where a folder should be")
    run.save("checkpoint-2")
    while run.queue.busy:
        run.queue.go_on()
    assert not run.queue.complete
    assert [line.partition(":")[0] for line in run.said] == ["checkpoint-2 was not copied"]
    run.away.unlink()
    run.save("checkpoint-4")
    run.queue.finish()
    assert run.queue.complete
    assert checkpoints(run.away) == ["checkpoint-2", "checkpoint-4"]
    assert contents(run.away / "checkpoint-2") == contents(tmp_path / "checkpoint-2")
    assert (run.away / "args.json").exists()
    assert len(run.said) == 1
    assert list((tmp_path / ".copies").iterdir()) == []


def test_slow_store_gets_newest_checkpoints(tmp_path: Path) -> None:
    """A store slower than the run gets the newest and keeps what the run keeps."""
    run = Copied(tmp_path)
    for step in (2, 4, 6):
        run.save(f"checkpoint-{step}")
        if step != 6:
            run.remove(f"checkpoint-{step}")
    run.queue.finish()
    assert run.said == []
    assert checkpoints(run.away) == ["checkpoint-6"]
    before = (run.away / "checkpoint-6" / "weights").stat().st_mtime_ns
    run.queue.add(tmp_path / "checkpoint-6", hold(tmp_path / "checkpoint-6", tmp_path / ".copies" / "checkpoint-6"))
    run.queue.finish()  # as a run does that goes on from it
    assert (run.away / "checkpoint-6" / "weights").stat().st_mtime_ns == before


def test_copier_ends_with_its_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless")
    task = {"folder": None, "to": "", "files": [str(tmp_path / "endless")], "files_to": "memory://there", "gone": []}
    with subprocess.Popen([sys.executable, "-m", "swift.remote.put"], stdin=subprocess.PIPE, text=True) as copying:
        assert copying.stdin is not None
        copying.stdin.write(json.dumps(task) + "\n")
        copying.stdin.close()
        assert copying.wait(60) == 1
