"""A process that stops in the middle of a step: the others say which, at which step, and what they wait for."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
from pathlib import Path

import pytest
from places import DEEPSPEED, FSDP, MEGATRON, TORCH, Engine, Place
from tiers import tiered

from swift.parsing import config_from_mapping
from swift.train.loop import Loop
from swift.train.prepare import open_job
from swift_testing import Layout, crew
from swift_testing.cases import CHATS
from swift_testing.subjects import Subject, shared_model

PLACES = (
    Place("torch", TORCH, Layout(2)),
    Place("FSDP", FSDP, Layout(2, {"dp_shard": 2})),
    Place("ZeRO-3", DEEPSPEED, Layout(2, {"dp_shard": 2}, {"backend.config": "zero3"})),
    Place("ZeRO-1", DEEPSPEED, Layout(2, {"dp_shard": 2}, {"backend.config": "zero1"})),
    Place("Megatron", MEGATRON, Layout(2, {"tp": 2})),
    Place("Megatron pipeline", MEGATRON, Layout(2, {"pp": 2})),
)
SECONDS = 4.0
"""In which nothing moves."""


def train(place: Place, model: Path, output: Path, stopped: int) -> None:
    """Save after step 2; before step 4 one process is stopped as a debugger, or a machine that swaps, would do it."""
    more = {"checkpoint.save_steps": 2, "train.timeout_minutes": SECONDS / 60}
    settings = place.settings(model, output, "run", **more)
    with open_job(config_from_mapping(settings), rows=CHATS) as job:
        for record in Loop(job).steps():
            if record.step == 3 and job.run.world.rank == stopped:
                os.kill(os.getpid(), signal.SIGSTOP)


def launched(
    place: Place, tmp_path: Path, stopped: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> str:
    engine: Engine = place.engine
    for module in ("torch._dynamo", *engine.preload):
        importlib.import_module(module)
    monkeypatch.setattr(crew, "GRACE", 3.0)
    model = shared_model(Subject(blocks=4), tied=False)
    environment = {"CUDA_VISIBLE_DEVICES": "", **engine.environment}
    capfd.readouterr()
    answers = crew.run_jobs(2, [lambda: train(place, model, tmp_path, stopped)], environment=environment)
    assert [isinstance(answer, crew.Lost) for answer in answers[0]] == [True, True]
    return capfd.readouterr().err


@pytest.mark.parametrize("place", tiered(PLACES, PLACES[:1]), ids=str)
def test_stopped_process_step_and_collective_are_named(
    place: Place, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stopped process the step and the collective are named."""
    said = launched(place, tmp_path, 1, capfd, monkeypatch)
    error = said[said.index("Error: The run makes no progress") :]
    assert said.count("Error: ") == 1
    assert "nothing has happened for 4 seconds, at step 4." in error
    assert "process 1: no sign of life, last heard of at " in error
    # torch's recorder does not note what gloo sends from one to one: there the line of code must do.
    collective = r"" if "pipeline" in place.name else r"for \w+ of .+, group \d+.* "
    assert re.search(rf"process 0: at step 4, waiting {collective}in .+\.py:\d+ \(\w+\): .+", error), error
    assert "Look at process 1 first" in error
    (run,) = tmp_path.glob("*/run")
    assert f"--resume_from_checkpoint {run / 'checkpoint-2'}" in error
    stacks = (run / "hang" / "process-0.txt").read_text()
    assert "Main thread:" in stacks
    assert "train_step" in stacks
    collectives = json.loads((run / "hang" / "process-0.collectives.json").read_text())
    assert any(not each["retired"] for each in collectives) or "pipeline" in place.name
    assert not (run / "hang" / "process-1.txt").exists()


@pytest.mark.full
def test_the_process_that_keeps_the_store_is_named_as_well(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = launched(PLACES[0], tmp_path, 0, capfd, monkeypatch)
    assert "process 0: no sign of life, last heard of at " in error
    assert "process 1: at step 4, waiting for" in error
