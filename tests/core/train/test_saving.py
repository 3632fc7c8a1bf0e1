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

import swift.export.stored
from swift.errors import CheckpointError
from swift.parsing import config_from_mapping
from swift.train.loop import Loop
from swift.train.prepare import open_job

ROWS = conversations(20)
SAVED_AT = 2
LORA = {"tuner.kind": "lora", "optim.lr": 1e-2}
FROZEN = {"tuner.freeze": ["*layers.0*"]}


def run(model: Path, output: Path, changes: dict[str, Any], step_after: threading.Event) -> dict[int, dict[str, Any]]:
    """Train for four steps, saving after the second and the last; return the weights in memory, by step.

    Weights are written only when the step after the save has been made.
    """
    settings = {
        **BASE, "model.path": str(model), "logging.output": str(output), "train.max_steps": 4, "train.global_batch": 4,
        "train.micro_batch": 2, "checkpoint.asynchronous": True, "checkpoint.save_steps": SAVED_AT, **changes,
    }  # fmt: skip
    live: dict[int, dict[str, Any]] = {}
    with open_job(config_from_mapping(settings), rows=ROWS) as job:
        for record in Loop(job).steps():
            weights = job.hooks.swift_iter_weights(job.run, job.state)
            live[record.step] = {name: tensor.clone().numpy() for name, tensor in weights}
            if record.step == SAVED_AT + 1:
                step_after.set()
    return live


def delay(monkeypatch: pytest.MonkeyPatch, work: Callable[..., None]) -> threading.Event:
    """Have weights ready to load written by `work`, once the step after the save is made; return that event."""
    step_after = threading.Event()

    def later(*arguments: Any, **more: Any) -> None:
        assert threading.current_thread().name == "checkpoint"
        assert step_after.wait(100)
        work(*arguments, **more)

    monkeypatch.setattr(swift.export.stored, "write_model_weights", later)
    return step_after


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("changes", "file"),
    [
        pytest.param({}, "model.safetensors", id="full"),
        pytest.param(FROZEN, "model.safetensors", id="partly frozen"),
        pytest.param(LORA, "adapter_model.safetensors", id="lora"),
    ],
)
def test_background_weights_are_those_of_saved_step(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], file: str, size: int
) -> None:
    """Weights ready to load are those of the saved step though training went on."""
    step_after = delay(monkeypatch, swift.export.stored.write_model_weights)
    ((live, *_),) = (
        map(succeeded, ranks) for ranks in on_processes(size, partial(run, tied, tmp_path, changes, step_after))
    )
    for step in (SAVED_AT, 4):
        written = load_file(tmp_path / tied.name / "run" / f"checkpoint-{step}" / file)
        assert written.keys() == live[step].keys()
        for name, tensor in written.items():
            assert np.array_equal(tensor.numpy(), live[step][name]), (step, name)
    assert any(not np.array_equal(live[SAVED_AT][name], live[4][name]) for name in live[4])


def test_failed_background_save_fails_all_ranks(tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that cannot be written in the background fail the run on all processes and leave nothing."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    step_after = delay(monkeypatch, fail)
    ((first, second),) = on_processes(2, partial(run, tied, tmp_path, {}, step_after))
    for error in (first, second):
        assert isinstance(error, CheckpointError)
        assert "Checkpoint 2 could not be written" in error.message
        assert "the disk is full" in error.message
    assert list((tmp_path / tied.name / "run").glob("checkpoint-*")) == []
