"""A run whose folder is removed while it trains ends with one message that names folder and step."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import conversations, run_training

from swift.contracts import StepResult
from swift.errors import TrainingError
from swift.hookspecs import hookimpl
from swift.observers.jsonl import JsonlObserver

REMOVED_IN = 3


@pytest.fixture(params=["swift_train_step", "swift_step_end"])
def removed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder goes away in the middle of a step, or when the first observer is told of it."""

    @hookimpl(wrapper=True)
    def swift_train_step(_: JsonlObserver, run: Any, state: Any) -> Iterator[StepResult]:
        result = yield
        if state.step == REMOVED_IN:
            shutil.rmtree(run.folder)
        return result

    @hookimpl(wrapper=True)
    def swift_step_end(_: JsonlObserver, run: Any, record: Any) -> Iterator[None]:
        if record.step == REMOVED_IN:
            shutil.rmtree(run.folder)
        return (yield)

    hooks = {"swift_train_step": swift_train_step, "swift_step_end": swift_step_end}
    monkeypatch.setattr(JsonlObserver, request.param, hooks[request.param], raising=False)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("observers", [["jsonl", "tensorboard"], ["console", "jsonl", "tensorboard", "report"]])
@pytest.mark.parametrize("save_steps", [1, 100])
def test_a_removed_folder_is_named_with_the_step(
    tiny: Path,
    tmp_path: Path,
    removed: None,
    observers: list[str],
    save_steps: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = {"logging.report_to": observers, "checkpoint.save_steps": save_steps, "train.max_steps": 6}
    with pytest.raises(TrainingError) as caught:
        run_training(tiny, tmp_path, conversations(8), changes)
    folder = tmp_path / tiny.name / "run"
    assert f"The run's folder {folder} is gone" in caught.value.message
    assert re.search(rf"step ({REMOVED_IN}|{REMOVED_IN + 1})\.", caught.value.message)
    assert caught.value.exit_code == 1
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
