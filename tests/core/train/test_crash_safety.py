"""Training is killed at random moments, again and again, and loses nothing that it had saved."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import BASE, conversations, run_training

from swift.checkpoint import open_checkpoint
from swift.checkpoint.folders import whole_checkpoints
from swift.parsing import config_from_mapping
from swift.train.loop import Loop, train
from swift.train.prepare import open_job
from swift_testing.crew import free_port

ROWS = conversations(26)
ENOUGH = 10_000
LEFT = "left-by-an-earlier-life"
SETTINGS: dict[str, Any] = {
    **BASE,
    "data.shuffle": True,
    "train.max_steps": ENOUGH,
    "train.global_batch": 4,
    "train.micro_batch": 2,
    "optim.schedule": "constant",
    "checkpoint.save_steps": 1,
    "checkpoint.keep": 3,
    "checkpoint.resume": "auto",
}


@dataclass
class Victim:
    """A run that is started again and again with the same command."""

    settings: dict[str, Any]
    folder: Path
    """Of the run."""
    diary: Path
    """'from 3', 'made 4', 'saved 4': what the main process has done."""
    processes: int
    verified: set[Path] = field(default_factory=set)

    def lines(self) -> list[tuple[str, int]]:
        text = self.diary.read_text() if self.diary.exists() else ""
        return [(what, int(step)) for what, step in (line.split() for line in text.splitlines())]

    @contextmanager
    def alive(self, pause_at: int | None = None) -> Iterator[list[BaseProcess]]:
        """Processes that train, forked from this one."""
        port = free_port()
        arguments = [(self, rank, port, pause_at) for rank in range(self.processes)]
        processes = [get_context("fork").Process(target=_live, args=each) for each in arguments]
        for each in processes:
            each.start()
        try:
            yield processes
        finally:
            for each in processes:
                with suppress(ProcessLookupError):
                    each.kill()
                each.join()

    def check(self) -> None:
        """What must be true whenever nobody is alive."""
        whole = whole_checkpoints(self.folder)
        named = {path for path in self.folder.glob("checkpoint-*") if path.suffix != ".tmp"}
        assert named == set(whole.values()), "what has the name of a checkpoint is whole"
        for folder in [each for each in whole.values() if each not in self.verified]:
            open_checkpoint(folder)
            self.verified.add(folder)
        saved = max((step for what, step in self.lines() if what == "saved"), default=0)
        assert max(whole, default=0) >= saved
        if saved:
            assert (self.folder / "last-checkpoint").resolve() in [each.resolve() for each in whole.values()]
            # The link is moved right after the rename, before the save counts as done.
            assert int((self.folder / "last-checkpoint").resolve().name.rpartition("-")[2]) >= saved

    def mark_leftovers(self) -> None:
        """Leave a sign in what this life was saving or removing, for the next life to clear away."""
        for folder in self.folder.glob("checkpoint-*.tmp"):
            (folder / LEFT).touch()


def _live(victim: Victim, rank: int, port: int, pause_at: int | None) -> None:
    """The whole life of one process."""
    os.setpgrp()
    if victim.processes > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(victim.processes))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    diary = os.open(victim.diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, step: int) -> None:
        if rank == 0:
            os.write(diary, f"{what} {step}\n".encode())

    def note_last(loop: Loop) -> None:
        if loop.saver.last is not None:
            note("saved", int(loop.saver.last.name.removeprefix("checkpoint-")))

    try:
        with open_job(config_from_mapping(victim.settings), rows=ROWS) as job:
            note("from", job.state.step)
            loop = Loop(job, pause_at=pause_at)
            for record in loop.steps():
                note("made", record.step)
                note_last(loop)
            note_last(loop)
    finally:
        # What the parent registered (pytest's own hooks among it) is not the child's to run.
        os._exit(0)


def killed_at_random(victim: Victim, times: int, draw: random.Random) -> None:
    """Each life ends after a few steps, anywhere in a step or in a save; some before the first step."""
    for _ in range(times):
        before = victim.lines()
        with victim.alive() as processes:
            made = draw.choice([0, 1, 1, 2, 2, 3])
            began = time.monotonic()
            deadline = began + 200
            while sum(what == "made" for what, _ in victim.lines()[len(before) :]) < made:
                assert time.monotonic() < deadline, f"no step was made; {victim.lines()[len(before) :]}"
                assert all(each.is_alive() for each in processes), "it ended by itself"
                time.sleep(0.002)
            pace = (time.monotonic() - began) / (made + 2)
            time.sleep(draw.uniform(0, pace))
            for each in draw.sample(processes, draw.randint(1, len(processes))):
                os.kill(each.pid or 0, signal.SIGKILL)
            if len(processes) > 1:
                time.sleep(0.2)  # those that are left may still do harm
        victim.check()
        now = victim.lines()[len(before) :]
        if now:
            assert list(victim.folder.glob(f"*.tmp/{LEFT}")) == [], "of an earlier life nothing is left"
            # It went on from the newest checkpoint that there was, and from nothing older.
            saved = max((step for what, step in before if what == "saved"), default=0)
            assert now[0][0] == "from"
            assert now[0][1] >= saved
        victim.mark_leftovers()


@pytest.mark.parametrize(
    ("asynchronous", "processes", "times"),
    [
        pytest.param(asynchronous, processes, times, marks=marks)
        for lives, marks in (((6, 2), ()), ((12, 4), pytest.mark.full), ((40, 10), pytest.mark.rare))
        for processes, times in zip((1, 2), lives, strict=True)
        for asynchronous in (False, True)
        if asynchronous or marks != pytest.mark.full  # which fewer lives go through
    ],
)
def test_killed_run_loses_nothing_saved(
    tied: Path, tmp_path: Path, asynchronous: bool, processes: int, times: int
) -> None:
    """A run that is killed at any moment loses nothing that it saved."""
    folder = tmp_path / tied.name / "run"
    settings = {**SETTINGS, "model.path": str(tied), "logging.output": str(tmp_path)}
    settings |= {"data.cache": str(tmp_path / "cache"), "checkpoint.asynchronous": asynchronous}
    victim = Victim(settings, folder, tmp_path / "diary", processes)
    killed_at_random(victim, times, random.Random(f"{asynchronous} {processes} {times}"))

    end = max(whole_checkpoints(folder), default=0) + 2
    with victim.alive(pause_at=end) as alive:
        for each in alive:
            each.join(200)
    assert list(folder.glob("*.tmp")) == []
    assert (folder / "last-checkpoint").resolve() == (folder / f"checkpoint-{end}").resolve()
    assert list(whole_checkpoints(folder)) == [end - 2, end - 1, end]

    undisturbed = {**settings, "logging.run_name": "undisturbed", "checkpoint.save_steps": ENOUGH}
    train(config_from_mapping(undisturbed), rows=ROWS, pause_at=end)
    expected = open_checkpoint(folder.with_name("undisturbed") / f"checkpoint-{end}")
    found = open_checkpoint(folder / f"checkpoint-{end}")
    assert sorted(found.names()) == sorted(expected.names())
    for name in expected.names():
        if processes == 1:
            assert torch.equal(found.read(name), expected.read(name)), name
        else:
            torch.testing.assert_close(found.read(name), expected.read(name), rtol=1e-4, atol=1e-6, msg=name)


def test_the_same_command_begins_goes_on_and_ends(
    tied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"checkpoint.resume": "auto", "train.max_steps": 4, "checkpoint.save_steps": 2}
    first = run_training(tied, tmp_path, ROWS, settings)
    assert list(first.lines) == [1, 2, 3, 4]
    assert "Resuming the run" not in capsys.readouterr().out
    again = run_training(tied, tmp_path, ROWS, settings)
    assert f"Resuming the run in {first.folder}" in capsys.readouterr().out
    assert again.summary.status == "completed"
    assert list(again.lines) == [1, 2, 3, 4]
    longer = run_training(tied, tmp_path, ROWS, {**settings, "train.max_steps": 6})
    assert list(longer.lines) == [1, 2, 3, 4, 5, 6]
