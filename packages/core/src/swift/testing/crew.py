"""Real processes for a list of jobs, forked from this one, so that everything is imported once.

Each process does one job after the other and reports each result. A process that dies, or that others wait for in vain,
costs its job, not the rest of the list: the crew is replaced and continues with the next.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import multiprocessing.connection
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import swift.testing.forks  # noqa: F401 - only for its effect
from swift.processes.signals import follow_parent
from swift.testing.gloo import share_device

# Threads do not survive a fork.
torch.set_num_threads(1)

PATIENCE = 420.0
"""Seconds that a job may take."""
ASKED = signal.SIGUSR2
"""A process that gets it writes down where it is."""
GRACE = 30.0
"""Seconds that the others have to come to their end when one process has failed."""

PORTS = (20_000, 29_999)
"""Below those that the system gives out, so that a port is still free when its job begins."""

Job = Callable[[], Any]
_SINCE_THE_FORK = re.compile(r"\n.* in _work\n")


@dataclass(frozen=True)
class FinalResult:
    """Result of a process that then dies on the spot, as if killed: nothing is closed or taken down."""

    value: Any


@dataclass(frozen=True)
class Lost:
    """Placeholder for the result of a process that died or did not end."""

    reason: str


def run_jobs(
    size: int, jobs: Sequence[Job], *, environment: dict[str, str] | None = None, fresh: bool = False
) -> list[list[Any]]:
    """Run jobs and return each one's results by rank: its value, the exception that it raised, or `Lost`.

    Every process finds the environment that `torchrun` would give it. With `fresh` each job has processes of its own.
    """
    answers: list[list[Any]] = []
    with tempfile.TemporaryDirectory(prefix="swift-crew-") as folder:
        while len(answers) < len(jobs):
            left = jobs[len(answers) :]
            answers += _one_crew(Path(folder), size, left[:1] if fresh else left, environment or {})
    return answers


def succeeded(answers: list[Any]) -> list[Any]:
    """Return the results, where every process has one."""
    for rank, answer in enumerate(answers):
        if isinstance(answer, Lost):
            raise AssertionError(f"process {rank} of {len(answers)} {answer.reason}")
        if isinstance(answer, BaseException):
            raise AssertionError(f"process {rank} of {len(answers)} failed: {answer.__notes__[-1]}")
    return answers


def _one_crew(folder: Path, size: int, jobs: Sequence[Job], environment: dict[str, str]) -> list[list[Any]]:
    """Return results of the first jobs: all of them, or those up to one that went wrong."""
    context = multiprocessing.get_context("fork")
    ports = _free_ports(len(jobs))
    pipes, workers = [], []
    gc.freeze()  # what is there already is none of the children's garbage: looking for it would copy all of it
    for rank in range(size):
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(rank, size, ports, jobs, environment, sender, folder))
        worker.start()
        sender.close()
        pipes.append(receiver)
        workers.append(worker)
    gc.unfreeze()
    done: list[list[Any]] = []
    try:
        for _ in jobs:
            answers = _answers(pipes, partial(_where, folder, workers))
            done.append([each.value if isinstance(each, FinalResult) else each for each in answers])
            if any(isinstance(each, Lost | FinalResult | BaseException) for each in answers):
                break
    finally:
        came_to_its_end = len(done) == len(jobs) and not any(isinstance(each, Lost) for each in done[-1])
        for worker in workers:
            worker.join(5 if came_to_its_end else 0)
            if worker.is_alive():
                _end(worker)
    return done


def _answers(pipes: Sequence[Any], where: Callable[[int], str]) -> list[Any]:
    """Receive one result from each process; once one has failed, the others are waited for only a little longer."""
    answers: list[Any] = [None] * len(pipes)
    waiting = set(range(len(pipes)))
    deadline = time.monotonic() + PATIENCE
    while waiting and time.monotonic() < deadline:
        ready = multiprocessing.connection.wait([pipes[rank] for rank in waiting], timeout=0.5)
        for rank in [rank for rank in waiting if pipes[rank] in ready]:
            waiting.remove(rank)
            try:
                answers[rank] = pipes[rank].recv()
            except (EOFError, OSError):
                answers[rank] = Lost("died without a word")
            if isinstance(answers[rank], Lost | BaseException):
                deadline = min(deadline, time.monotonic() + GRACE)
    for rank in waiting:
        answers[rank] = Lost(f"did not come to an end{where(rank)}")
    return answers


def _where(folder: Path, workers: Sequence[Any], rank: int) -> str:
    """Return what the threads of a process are doing, which it writes down when it is asked."""
    with suppress(ProcessLookupError):
        os.kill(workers[rank].pid, ASKED)
    time.sleep(1)
    written = folder / str(rank)
    threads = written.read_text(errors="replace").strip().split("\n\n") if written.is_file() else []
    told = "\n".join(_SINCE_THE_FORK.split(thread)[0] for thread in threads)
    return f". Where it was:\n{told}" if told else ""


def _work(
    rank: int,
    size: int,
    ports: Sequence[int],
    jobs: Sequence[Job],
    environment: dict[str, str],
    pipe: Any,
    folder: Path,
) -> None:
    os.setpgrp()
    follow_parent(signal.SIGKILL)
    told = (folder / str(rank)).open("w")
    faulthandler.register(ASKED, file=told)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo", **environment)
    _forget_threads_of_the_parent()
    share_device()
    for port, job in zip(ports, jobs, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        try:
            answer = job()
        except BaseException as error:
            error.add_note(traceback.format_exc())
            answer = error.with_traceback(None)
        try:
            pipe.send(answer)
        except Exception as unsendable:
            pipe.send(RuntimeError(f"{answer!r} could not be sent: {unsendable}"))
        if isinstance(answer, FinalResult):
            os._exit(1)
    # What the parent registered (pytest's own hooks among it) is not the child's to run.
    os._exit(0)


def _forget_threads_of_the_parent() -> None:
    """torch.compile keeps the pool of threads that it compiled with; here it would be waited for in vain."""
    compiler: Any = sys.modules.get("torch._inductor.async_compile")
    if compiler is not None:
        compiler.AsyncCompile.pool.cache_clear()


def _end(worker: Any) -> None:
    """With the processes that it started."""
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        worker.kill()
    worker.join(5)


def _free_ports(count: int) -> list[int]:
    """Return ports that are free, each another."""
    ports: dict[int, None] = {}
    while len(ports) < count:
        ports[free_port()] = None
    return list(ports)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on, and that the system assigns to nobody else."""
    # Among workers of pytest-xdist each has ports of its own: one that was found free here is not found free there.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0) % workers
    while True:
        port = random.SystemRandom().randrange(PORTS[0] + mine, PORTS[1] + 1, workers)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
