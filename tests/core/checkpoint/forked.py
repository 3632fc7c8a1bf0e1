"""What tests of checkpoints share: a manifest, and forked processes with a gloo group, so that torch is loaded once."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DTensor imports it when first used: seconds, here once instead of in every process
import torch.distributed as dist

from swift.checkpoint import Manifest

MANIFEST = Manifest(step=0, rows_per_step=8, seed=1, model_fingerprint="m", data_fingerprint="d", backend="torch")

# Threads do not survive a fork.
torch.set_num_threads(1)


def on_processes(size: int, function: Callable[[int], Any], *, dying: int | None = None) -> list[Any]:
    """What `function(rank)` returned on each process; the first failure is raised with its traceback.

    `dying` is the rank of a process that is meant to die without an answer; its result is None.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(rank, size, Path(folder) / "store", function, sender))
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        results = []
        for receiver in pipes:
            try:
                results.append(receiver.recv() if receiver.poll(120) else (False, "no answer in time"))
            except EOFError:
                results.append((len(results) == dying, None))
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
    for rank, (good, value) in enumerate(results):
        assert good, f"process {rank}:\n{value or 'it died'}"
    return [value for _, value in results]


def _work(rank: int, size: int, store: Path, function: Callable[[int], Any], pipe: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
        )
        pipe.send((True, function(rank)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    # What the parent registered (pytest's own hooks among it) is not the child's to run.
    os._exit(0)
