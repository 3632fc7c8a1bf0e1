"""What is saved in the background is the state of its step, whatever training does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import on_processes, succeeded
from safetensors.torch import load_file
from tiny_runs import BASE, conversations

import swift.export.run
from swift.config.parse import config_from_mapping
from swift.contracts import StepRecord
from swift.errors import CheckpointError
from swift.train.loop import Loop
from swift.train.prepare import opened

ROWS = conversations(20)
SAVED_AT = 2
LORA = {"tuner.kind": "lora", "optim.lr": 1e-2}
FROZEN = {"tuner.freeze": ["*layers.0*"]}


class Watched(Loop):
    """Lets weights be written at the last step only; keeps those that were in memory when a checkpoint was due."""

    def __init__(self, *arguments: Any, last_step: threading.Event) -> None:
        super().__init__(*arguments)
        self.live: dict[int, dict[str, Any]] = {}
        self._last_step = last_step

    def _step(self, step: int) -> StepRecord:
        record = super()._step(step)
        weights = self.job.hooks.iter_weights(self.job.run, self.job.state)
        self.live[record.step] = {name: tensor.clone().numpy() for name, tensor in weights}
        if record.step == record.total_steps:
            self._last_step.set()
        return record


def run(model: Path, output: Path, changes: dict[str, Any], last_step: threading.Event) -> dict[int, dict[str, Any]]:
    """Train for four steps, saving at the second and the last; answers the weights in memory, by step."""
    settings = {
        **BASE, "model.path": str(model), "logging.output": str(output), "train.max_steps": 4, "train.global_batch": 4,
        "train.micro_batch": 2, "checkpoint.asynchronous": True, "checkpoint.save_steps": SAVED_AT, **changes,
    }  # fmt: skip
    with opened(config_from_mapping(settings), rows=ROWS) as job:
        loop = Watched(job, [], last_step=last_step)
        loop.run()
    return loop.live


def delay(monkeypatch: pytest.MonkeyPatch, work: Callable[..., None]) -> threading.Event:
    """Have weights ready to load written by `work`, when the last step is made; answers the event of that step."""
    last_step = threading.Event()

    def later(*arguments: Any, **more: Any) -> None:
        assert threading.current_thread().name == "checkpoint"
        assert last_step.wait(100)
        work(*arguments, **more)

    monkeypatch.setattr(swift.export.run, "write_model_weights", later)
    return last_step


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("changes", "file"),
    [
        pytest.param({}, "model.safetensors", id="full"),
        pytest.param(FROZEN, "model.safetensors", id="partly frozen"),
        pytest.param(LORA, "adapter_model.safetensors", id="lora"),
    ],
)
def test_weights_ready_to_load_are_those_of_the_saved_step_though_training_went_on(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], file: str, size: int
) -> None:
    last_step = delay(monkeypatch, swift.export.run.write_model_weights)
    ((live, *_),) = (
        map(succeeded, ranks) for ranks in on_processes(size, partial(run, tied, tmp_path, changes, last_step))
    )
    for step in (SAVED_AT, 4):
        written = load_file(tmp_path / tied.name / "run" / f"checkpoint-{step}" / file)
        assert written.keys() == live[step].keys()
        for name, tensor in written.items():
            assert np.array_equal(tensor.numpy(), live[step][name]), (step, name)
    assert any(not np.array_equal(live[SAVED_AT][name], live[4][name]) for name in live[4])


def test_weights_that_cannot_be_written_in_the_background_fail_the_run_on_all_processes_and_leave_nothing(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    last_step = delay(monkeypatch, fail)
    ((first, second),) = on_processes(2, partial(run, tied, tmp_path, {}, last_step))
    for error in (first, second):
        assert isinstance(error, CheckpointError)
        assert "Checkpoint 2 could not be written" in error.message
        assert "the disk is full" in error.message
    assert list((tmp_path / tied.name / "run").glob("checkpoint-*")) == []
