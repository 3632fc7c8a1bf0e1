"""Under torch's elastic launcher processes come and go, and the run goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Run, forked, sft, started

from swift_testing.crew import free_port

STEPS = 40
FLAGS = ("--max_steps", str(STEPS), "--save_steps", "3", "--global_batch_size", "4", "--logging.run_name", "run")
WATCHED = """
import json, os, time
if "RANK" in os.environ:
    from swift.train.loop import Loop
    whole = Loop.make_step
    def step(self, number):
        record = whole(self, number)
        world = self.job.topology.world
        batch = self.job.batch_schedule.batch(number, world.rank, world.size)
        samples = [sample.sample_id for row in batch.rows for sample in row]
        with open("made.jsonl", "a") as file:
            file.write(json.dumps([number, world.rank, world.size, samples, record.result.loss]) + "\\n")
        if os.path.exists("slow"):
            time.sleep(0.3)
        return record
    Loop.make_step = step
"""


def watched(folder: Path) -> dict[str, str]:
    """The environment in which every process notes its samples, and takes its time while there is a file 'slow'."""
    (folder / "watched").mkdir()
    (folder / "watched" / "sitecustomize.py").write_text(WATCHED)
    shared = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"
    }  # with it torch never tells a node that comes later where to meet
    return {"PYTHONPATH": str(folder / "watched"), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **shared}


def made(folder: Path) -> list[list[Any]]:
    """[step, process, processes, samples, loss] of every step, in the order in which they were made."""
    file = folder / "made.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def final(lines: list[list[Any]]) -> dict[int, tuple[list[int], float]]:
    """Samples and loss of each step as it was made last, by however many processes."""
    found = {}
    for step in range(STEPS):
        attempts = [line for line in lines if line[0] == step]
        assert attempts, f"step {step} was never made"
        size = attempts[-1][2]
        by_rank = {rank: (samples, loss) for _, rank, processes, samples, loss in attempts if processes == size}
        found[step] = ([each for rank in sorted(by_rank) for each in by_rank[rank][0]], by_rank[0][1])
    return found


def until(condition: Callable[[], bool], run: Run) -> None:
    end = time.monotonic() + 240
    while not condition():
        assert run.process.poll() is None, run.output
        assert time.monotonic() < end, run.output
        time.sleep(0.1)


def torchrun(port: int) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "elastic"]
    patience = ["--rdzv-conf", "last_call_timeout=1", "--max-restarts", "5", "--monitor-interval", "0.5"]
    return [*launcher, *meeting, *patience, "-m", "swift", *sft(*FLAGS)[3:]]


def undisturbed_run() -> int:
    from swift.cli import main

    exec(WATCHED, {})
    return main.run(sft(*FLAGS)[3:])


@pytest.mark.full
def test_a_run_goes_on_with_more_processes_and_with_fewer(place: Path) -> None:
    environment = watched(place)
    (place / "slow").touch()
    command = torchrun(free_port())
    with started(command, place, environment) as first:
        until(lambda: len(made(place)) > 4, first)
        assert {size for _, _, size, _, _ in made(place)} == {1}
        with started(command, place, environment) as second:
            until(lambda: sum(size == 2 for _, _, size, _, _ in made(place)) > 8, first)
            for process in second.processes():
                os.kill(process.pid, signal.SIGKILL)
        before = len(made(place))
        until(lambda: len(made(place)) > before + 2, first)
        assert made(place)[-1][2] == 1
        (place / "slow").unlink()
        assert first.code() == 0, first.output
    assert first.output.count("Resuming the run in") >= 2
    runs = [path.name for path in (place / "output" / "tiny").iterdir()]
    assert runs == ["run"]
    assert not list((place / "output" / "tiny" / "run").glob("*.tmp"))
    alone = place / "alone"
    alone.mkdir()
    for name in ("tiny", "data.jsonl"):
        (alone / name).symlink_to(place / name)
    undisturbed = forked(1, undisturbed_run, alone)
    assert undisturbed.code == 0, undisturbed.output
    expected = final(made(alone))
    for step, (samples, loss) in final(made(place)).items():
        assert samples == expected[step][0], f"step {step}"
        assert loss == pytest.approx(expected[step][1], rel=1e-5), f"step {step}"
