"""Real processes for a list of jobs, forked from this one, so that everything is imported once.

Each process does one job after the other and reports each result. A process that dies, or that others wait for in vain,
costs its job, not the rest of the list: the crew is replaced and continues with the next.
"""

from __future__ import annotations

import ctypes
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
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch

import swift_testing.forks  # noqa: F401 - only for its effect

# Threads do not survive a fork.
torch.set_num_threads(1)

__tracebackhide__ = True  # pytest shows the sentence alone

PATIENCE = 420.0
"""Seconds that a job may take."""
DUMP = signal.SIGUSR2
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
    results: list[list[Any]] = []
    with tempfile.TemporaryDirectory(prefix="swift-crew-") as folder:
        while len(results) < len(jobs):
            left = jobs[len(results) :]
            results += _one_crew(Path(folder), size, left[:1] if fresh else left, environment or {})
    return results


def succeeded(results: list[Any]) -> list[Any]:
    """Return the results, where every process has one."""
    for rank, result in enumerate(results):
        if isinstance(result, Lost):
            raise AssertionError(f"process {rank} of {len(results)} {result.reason}")
        if isinstance(result, BaseException):
            raise AssertionError(f"process {rank} of {len(results)} failed: {result.__notes__[-1]}")
    return results


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
            results = _results(pipes, partial(_where, folder, workers))
            done.append([each.value if isinstance(each, FinalResult) else each for each in results])
            if any(isinstance(each, Lost | FinalResult | BaseException) for each in results):
                break
    finally:
        came_to_its_end = len(done) == len(jobs) and not any(isinstance(each, Lost) for each in done[-1])
        for worker in workers:
            worker.join(5 if came_to_its_end else 0)
            if worker.is_alive():
                _end(worker)
    return done


def _results(pipes: Sequence[Any], where: Callable[[int], str]) -> list[Any]:
    """Receive one result from each process; once one has failed, the others are waited for only a little longer."""
    results: list[Any] = [None] * len(pipes)
    waiting = set(range(len(pipes)))
    deadline = time.monotonic() + PATIENCE
    while waiting and time.monotonic() < deadline:
        ready = multiprocessing.connection.wait([pipes[rank] for rank in waiting], timeout=0.5)
        for rank in [rank for rank in waiting if pipes[rank] in ready]:
            waiting.remove(rank)
            try:
                results[rank] = pipes[rank].recv()
            except (EOFError, OSError):
                results[rank] = Lost("died without a result")
            if isinstance(results[rank], Lost | BaseException):
                deadline = min(deadline, time.monotonic() + GRACE)
    for rank in waiting:
        results[rank] = Lost(f"did not come to an end{where(rank)}")
    return results


def _where(folder: Path, workers: Sequence[Any], rank: int) -> str:
    """Return what the threads of a process are doing, which it writes to a file on a signal."""
    with suppress(ProcessLookupError):
        os.kill(workers[rank].pid, DUMP)
    time.sleep(1)
    written = folder / str(rank)
    threads = written.read_text(errors="replace").strip().split("\n\n") if written.is_file() else []
    stacks = "\n".join(_SINCE_THE_FORK.split(thread)[0] for thread in threads)
    return f". Where it was:\n{stacks}" if stacks else ""


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
    _die_with_parent()
    stacks = (folder / str(rank)).open("w")
    faulthandler.register(DUMP, file=stacks)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo", **environment)
    _forget_threads_of_the_parent()
    _share_device()
    for port, job in zip(ports, jobs, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        try:
            result = job()
        except BaseException as error:
            error.add_note(traceback.format_exc())
            result = error.with_traceback(None)
        try:
            pipe.send(result)
        except Exception as unsendable:
            pipe.send(RuntimeError(f"{result!r} could not be sent: {unsendable}"))
        if isinstance(result, FinalResult):
            os._exit(1)
    # What the parent registered (pytest's own hooks among it) is not the child's to run.
    os._exit(0)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _forget_threads_of_the_parent() -> None:
    """torch.compile keeps the pool of threads that it compiled with; here it would be waited for in vain."""
    compiler: Any = sys.modules.get("torch._inductor.async_compile")
    if compiler is not None:
        compiler.AsyncCompile.pool.cache_clear()


def _share_device() -> None:
    """Let all groups of this process share one device, whose one thread serves all connections.

    gloo would start a thread for each group, which wakes up a hundred times a second; engines make dozens of groups.
    The thread does not survive a fork: call this after one.
    """
    from torch.distributed import distributed_c10d

    plain: Any = getattr(distributed_c10d, "ProcessGroupGloo", None)
    if plain is None:  # a torch without gloo
        return
    device = plain.create_device(interface="lo")

    class ProcessGroupGloo(plain):  # type: ignore[misc]  # what it inherits from is C++
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, **switches: bool) -> None:
            options = plain._Options()
            options._timeout, options._devices = timeout, [device]
            for name in filter(switches.get, switches):  # torch 2.14 passes enable_reconfigure
                setattr(options, name, True)
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = ProcessGroupGloo  # type: ignore[misc]  # torch has no setting for it


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
    """Return a port of the loopback interface that is free, and outside those that the system assigns."""
    # Among workers of pytest-xdist each has ports of its own: one that was found free here is not found free there.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0) % workers
    while True:
        port = random.SystemRandom().randrange(PORTS[0] + mine, PORTS[1] + 1, workers)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
