"""A backend that raises in the first step is shown as the cause, however far the other processes are."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from commands import forked, sft
from tiny_runs import conversations, run_training

from swift.backends.torch.plugin import DataParallelBackend
from swift.errors import TrainingError
from swift.hookspecs import hookimpl

CAUSE = "the matrices do not fit"


@hookimpl
def failing_step(_: DataParallelBackend, run: Any) -> Any:
    raise RuntimeError(CAUSE)


def late_run_files(failed: Path) -> int:
    """Train on this process: rank 1 fails, and rank 0 writes `args.json` once it has."""
    from swift.cli import main
    from swift.processes import reports
    from swift.train import loop, resume

    failure_of, write_run_files = loop.failure_of, resume.write_run_files

    def noted_failure(*arguments: Any) -> Exception:
        failure = failure_of(*arguments)
        failed.touch()
        return failure

    def write_later(*arguments: Any) -> None:
        end = time.monotonic() + 60
        while not failed.exists() and time.monotonic() < end:
            time.sleep(0.02)
        write_run_files(*arguments)

    reports._HOLD_BACK = 0.1
    if os.environ["RANK"] == "1":
        DataParallelBackend.swift_train_step, loop.failure_of = failing_step, noted_failure  # type: ignore[assignment]
    else:
        resume.write_run_files = write_later
    return main.run(sft("--max_steps", "2", "--save_steps", "1000")[3:])


def test_error_before_run_files_is_shown(place: Path) -> None:
    """The process that fails has never seen the run's files: that they are absent means nothing."""
    ended = forked(2, lambda: late_run_files(place / "failed"), place)
    assert ended.code == 1
    assert f"Process 1 failed in step 1: RuntimeError: {CAUSE}" in ended.output, ended.output
    assert "is gone" not in ended.output


def test_error_of_backend_is_shown_without_folder(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is really removed, but that is not why the run fails."""

    @hookimpl
    def fail_without_folder(_: DataParallelBackend, run: Any) -> Any:
        run.folder.rename(run.folder.with_name("renamed"))
        raise RuntimeError(CAUSE)

    monkeypatch.setattr(DataParallelBackend, "swift_train_step", fail_without_folder)
    with pytest.raises(TrainingError, match=f"Process 0 failed in step 1: RuntimeError: {CAUSE}"):
        run_training(tiny, tmp_path, conversations(8), {"train.max_steps": 1})
