"""SIGTERM and Ctrl-C, at every moment of a run."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from commands import Run, noise, resume_command, sft, started, typed

from swift.checkpoint import find_checkpoint

STEPS = 60


def stop(run: Run, number: int) -> None:
    """Ctrl-C as a terminal does it, SIGTERM as a scheduler does it."""
    if number == signal.SIGINT:
        run.ctrl_c()
    else:
        run.process.send_signal(number)


@pytest.mark.parametrize(
    ("flags", "number", "code"),
    [
        pytest.param((), signal.SIGINT, 130, id="one process, Ctrl-C"),
        pytest.param(("--nproc", "2"), signal.SIGTERM, 143, id="two processes, SIGTERM", marks=pytest.mark.full),
    ],
)
def test_stopped_run_saves_and_prints_resume_command(
    place: Path, flags: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    """A run that is stopped saves and the command that it prints ends it."""
    with started(sft("--max_steps", str(STEPS), *flags), place) as run:
        run.until(f"step 2/{STEPS}")
        stop(run, number)
        assert run.code() == code, run.output
        assert run.leaves_nothing()
    assert run.output.count(f"{number.name}: finishing the step and saving. Repeat to exit at once.") == 1
    assert run.output.count("Stopped after") == 1
    assert noise(run.output) == []
    stopped_at = int(re.findall(r"Stopped after (\d+) steps", run.output)[0])
    command = resume_command(run.output)
    if flags:
        assert command[-2:] == ["--nproc", "2"]
        return

    resumed = typed(command[3:], place)
    assert resumed.code == 0, resumed.output
    assert f"at step {stopped_at} of {STEPS}" in resumed.output
    assert "Completed" in resumed.output
    (log,) = place.glob("output/tiny/*/logging.jsonl")
    lines = map(json.loads, log.read_text().splitlines())
    assert [line["step"] for line in lines if "step" in line][-1] == STEPS


SLOW_LOAD = """
import time
from swift import terminal
whole = terminal.waiting
def waiting(text, *more, **named):
    if text == "Loading the model":
        print("loading", flush=True)
        time.sleep(600)
    return whole(text, *more, **named)
terminal.waiting = waiting
"""


def test_signal_before_first_step_ends_and_leaves_nothing(place: Path) -> None:
    """A signal before the first step ends promptly and leaves nothing."""
    (place / "slow").mkdir()
    (place / "slow" / "sitecustomize.py").write_text(SLOW_LOAD)
    with started(sft(), place, {"PYTHONPATH": str(place / "slow")}) as run:
        run.until("loading")
        run.process.send_signal(signal.SIGTERM)
        assert run.code(within=90) == 143, run.output
        assert run.leaves_nothing()
    assert run.output.count("Stopped by SIGTERM.") == 1
    assert noise(run.output) == []
    assert not (place / "output").exists()


def test_a_signal_while_workers_are_being_started_ends_promptly(place: Path) -> None:
    with started(sft("--nproc", "2"), place) as run:
        while not run.workers():
            assert run.process.poll() is None, run.output
            time.sleep(0.05)
        run.ctrl_c()
        assert run.code(within=90) == 130, run.output
        assert run.leaves_nothing()
    assert run.output.endswith("Stopped by SIGINT.\n")
    assert noise(run.output) == []
    assert not (place / "output").exists()


SLOW_SAVE = """
import time
from swift.checkpoint import save
whole = save.write_manifest
def write_manifest(folder, manifest):
    if manifest.step > 1:
        print("writing the manifest", flush=True)
        time.sleep(600)
    whole(folder, manifest)
save.write_manifest = write_manifest
"""


@pytest.mark.full
def test_second_signal_aborts_save_and_keeps_checkpoints(place: Path) -> None:
    """A second signal ends a save at once and harms no earlier checkpoint."""
    (place / "slow").mkdir()
    (place / "slow" / "sitecustomize.py").write_text(SLOW_SAVE)
    command = sft("--max_steps", "500", "--save_steps", "1", "--nproc", "2")
    with started(command, place, {"PYTHONPATH": str(place / "slow")}) as run:
        run.until("writing the manifest")
        run.ctrl_c()
        run.until("SIGINT: finishing the step")
        time.sleep(1.5)
        assert run.process.poll() is None
        run.ctrl_c()
        assert run.code(within=60) == 130, run.output
        assert run.leaves_nothing()
    assert noise(run.output) == []
    (folder,) = place.glob("output/tiny/v0-*")
    assert find_checkpoint(folder).name == "checkpoint-1"
    resumed = typed(sft("--max_steps", "3", "--resume_from_checkpoint", str(folder))[3:], place)
    assert resumed.code == 0, resumed.output
    assert "at step 1 of 3" in resumed.output
    assert list(folder.glob("*.tmp")) == []
