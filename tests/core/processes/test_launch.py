"""Several processes by one command: how they find each other, and whose words reach the user."""

from __future__ import annotations

import json
import re
import runpy
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import Run, forked, noise, sabotage, sft, started

from swift_testing.crew import free_port

ROOT = Path(__file__).parents[3]
MEETING = r"Backend +torch, (\d+) process"
SLOW_TO_WRITE = """
if os.environ.get("RANK") == "0":
    import io, time
    whole = io.open
    def slow_open(file, *others, **named):
        opened = whole(file, *others, **named)
        if "error.json" in str(file):
            time.sleep(60)
        return opened
    io.open = slow_open
"""
"""The first process comes to a halt between opening its report and writing it."""


def steps(folder: Path) -> list[dict[str, float]]:
    """The logged steps of the one run under `folder`."""
    (log,) = folder.glob("output/tiny/*/logging.jsonl")
    lines = map(json.loads, log.read_text().splitlines())
    return [line for line in lines if "step" in line]


def test_two_ranks_train_and_one_prints(place: Path) -> None:
    with started(sft("--nproc", "2", "--max_steps", "3"), place) as run:
        assert run.code() == 0, run.output
        assert run.leaves_nothing()
    assert re.search(MEETING, run.output)[1] == "2"
    for line in ("step 1/3", "step 2/3", "step 3/3", "Completed after 3 steps"):
        assert run.output.count(line) == 1
    assert noise(run.output) == []
    assert len(steps(place)) == 3


@pytest.mark.full
def test_shared_error_is_printed_once(place: Path) -> None:
    with started(sft("--nproc", "2", "--train.global_batch", "7"), place) as run:
        assert run.code() == 2, run.output
        assert run.leaves_nothing()
    assert run.output.count("Error:") == 1
    assert run.output.count("train.global_batch 7 cannot be divided evenly over 2 processes.") == 1
    assert noise(run.output) == []
    assert not (place / "output").exists()


@pytest.mark.full
def test_unexpected_error_of_one_rank_prints_one_traceback(place: Path) -> None:
    """The others lose the connection, and write that down in the moment in which the launcher ends them."""
    environment = sabotage(place, 1, "raise RuntimeError('a cable fell out')")
    with (place / "sabotage" / "sitecustomize.py").open("a") as script:
        script.write(SLOW_TO_WRITE)
    with started(sft("--nproc", "2", "--max_steps", "500"), place, environment) as run:
        assert run.code() == 1, run.output
        assert run.leaves_nothing()
    assert run.output.count("Traceback") == 1
    assert run.output.count("RuntimeError: a cable fell out") == 1
    assert "Process 1 failed" in run.output
    assert "step 1/500" in run.output


def test_a_killed_process_is_named_and_takes_the_others_along(place: Path) -> None:
    environment = sabotage(place, 1, "os.kill(os.getpid(), 9)")
    with started(sft("--nproc", "2", "--max_steps", "500"), place, environment) as run:
        assert run.code() == 1, run.output
        assert run.leaves_nothing()
    assert run.output.count("Error:") == 1
    assert "Process 1 was killed by SIGKILL." in run.output
    assert noise(run.output) == []


@pytest.mark.full
def test_workers_do_not_outlive_their_launcher(place: Path) -> None:
    with started(sft("--nproc", "2", "--max_steps", "5000", "--save_steps", "5000"), place) as run:
        run.until("step 2/5000")
        assert run.workers().keys() == {"0", "1"}
        run.process.kill()
        assert run.leaves_nothing()


def launchers(
    stack: ExitStack, place: Path, commands: list[list[str]], environments: list[dict[str, str]]
) -> list[Run]:
    return [
        stack.enter_context(started(command, place, environment))
        for command, environment in zip(commands, environments, strict=True)
    ]


TWICE = """
import os, time
from swift import Trainer

args = {"backend": "fsdp", "device": "cpu", "max_steps": 2, "save_steps": 1}
for name in ("first", "second"):
    time.sleep(2 * (os.environ["RANK"] == "0"))
    Trainer("tiny", {**args, "run_name": name}, "data.jsonl").train()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(1)
"""


@pytest.mark.full
def test_a_script_that_trains_twice_runs_under_torchrun(place: Path) -> None:
    (place / "twice.py").write_text(TWICE)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    with started([sys.executable, *launcher, "twice.py"], place) as run:
        assert run.code() == 0, run.output
        assert run.leaves_nothing()
    # Started once more, each run finds itself at its end.
    assert run.output.count("step 2/2") == 2
    resumed = re.findall(r"Resuming from .*/(.*/checkpoint-\d)", run.output)
    assert resumed == ["first/checkpoint-2", "second/checkpoint-2"]


@pytest.mark.full
def test_two_slurm_tasks_make_one_group(place: Path) -> None:
    task = {
        "SLURM_JOB_ID": str(free_port() % 15000),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
    }
    tasks = [task | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    with ExitStack() as stack:
        runs = launchers(stack, place, [sft("--max_steps", "3")] * 2, tasks)
        assert [run.code() for run in runs] == [0, 0], "\n".join(run.output for run in runs)
        assert all(run.leaves_nothing() for run in runs)
    assert re.findall(MEETING, runs[0].output) == ["2"]
    assert runs[1].output == ""


@pytest.mark.full
def test_two_pods_with_two_processes_each_make_one_group(place: Path) -> None:
    pod = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with ExitStack() as stack:
        command = sft("--max_steps", "2", "--nproc", "2")
        runs = launchers(stack, place, [command] * 2, [pod | {"RANK": str(rank)} for rank in range(2)])
        assert [run.code() for run in runs] == [0, 0], "\n".join(run.output for run in runs)
        assert all(run.leaves_nothing() for run in runs)
    assert re.findall(MEETING, runs[0].output) == ["4"]
    assert noise(runs[0].output) == []
    assert runs[1].output == ""


def test_a_port_in_use_is_one_sentence(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pod = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": "0"}
        for command in (sft(), sft("--nproc", "2")):
            with started(command, place, pod) as run:
                assert run.code() == 2, run.output
            assert run.output.count("Error:") == 1
            assert f"Port {port}" in run.output
            assert "export MASTER_PORT=" in run.output
            assert noise(run.output) == []
    assert not (place / "output").exists()


def test_waiting_for_another_machine_can_be_broken_off(place: Path) -> None:
    pod = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "RANK": "0"}
    with started(sft("--nproc", "2"), place, pod) as run:
        while not any(each.net_connections() for each in run.processes()):
            assert run.process.poll() is None, run.output
        run.ctrl_c()
        assert run.code(within=60) == 130
        assert run.leaves_nothing()
    assert run.output == "Stopped by SIGINT.\n"


def test_failed_rendezvous_prints_no_traceback(place: Path) -> None:
    script = f"""
from swift.errors import ConfigError
from swift.processes import workers
from swift.processes.group import Group
workers.MEETING_TIMEOUT = 1
try:
    workers.run_workers(Group(size=2, rank=1, address="127.0.0.1", port={free_port()}, processes=2), ["sft"])
except ConfigError as error:
    print("Error:", error)
"""
    with started([sys.executable, "-c", script], place) as run:
        assert run.code() == 0, run.output
    assert run.output.count("Error: The 2 machines of this run did not meet at 127.0.0.1") == 1
    assert "Traceback" not in run.output


def test_example_script_trains_under_deepspeed_launcher(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script in examples trains under the DeepSpeed launcher."""
    words = "--model_id tiny --train_type sft --dataset data.jsonl --max_steps 2"
    script = str(ROOT / "examples" / "train.py")
    # What `deepspeed` adds to the command line of each process; what it sets is what torchrun sets.
    monkeypatch.setattr(sys, "argv", [script, "--local_rank=0", *words.split()])
    run = forked(1, lambda: runpy.run_path(script, run_name="__main__"), place)
    assert run.code == 0, run.output
    assert "Completed after 2 steps" in run.output
