"""Runs of several processes, forked from this one, so that torch is imported once."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

PATIENCE = 240
"""Seconds until a process that gives no answer is ended."""


def on_processes(size: int, *cases: Callable[[], Any]) -> list[list[Any]]:
    """Each case's answers by rank; an exception is an answer too.

    Every process calls the cases one after the other, in the environment that `torchrun` would give it.
    """
    context = multiprocessing.get_context("fork")
    ports = [_free_port() for _ in cases]
    pipes, workers = [], []
    for rank in range(size):
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(rank, size, ports, cases, sender))
        worker.start()
        sender.close()
        pipes.append(receiver)
        workers.append(worker)
    try:
        answers = [_answer(rank, receiver) for rank, receiver in enumerate(pipes)]
    finally:
        for worker in workers:
            worker.join(5)
            if worker.is_alive():
                worker.kill()
    return [list(by_rank) for by_rank in zip(*answers, strict=True)]


def succeeded(answers: list[Any]) -> list[Any]:
    """The answers, where none of them is an exception."""
    for rank, answer in enumerate(answers):
        if isinstance(answer, BaseException):
            raise AssertionError(f"process {rank} failed: {answer.__notes__[0]}")
    return answers


def _answer(rank: int, receiver: Any) -> list[Any]:
    assert receiver.poll(PATIENCE), f"process {rank} gave no answer in time"
    answers: list[Any] = receiver.recv()
    return answers


def _work(rank: int, size: int, ports: list[int], cases: tuple[Callable[[], Any], ...], pipe: Any) -> None:
    answers: list[Any] = []
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for port, case in zip(ports, cases, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        try:
            answers.append(case())
        except BaseException as error:
            error.add_note(traceback.format_exc())
            answers.append(error.with_traceback(None))
    pipe.send(answers)
    # What the parent registered (pytest's own hooks among it) is not the child's to run.
    os._exit(0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
