"""Where a process computes, and how it joins the others: device, threads and process group. For use by backends."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as distributed_c10d
from torch._C._distributed_c10d import HashStore, Store

from swift.config.incompatibilities import no_cuda
from swift.contracts import World
from swift.errors import ConfigError, UnsupportedLayout
from swift.processes.group import processes_here, threads_set
from swift.processes.meeting import meet

_joined = False
"""Whether the group of this process is one that `join_group` made."""


def choose_device(requested: str, world: World, *, cpu_threads: int | None = None) -> torch.device:
    """'auto', 'cpu' or 'cuda', made this process's device; on the CPU it takes its share of the cores."""
    if requested == "cuda" and not torch.cuda.is_available():
        raise no_cuda()
    if requested == "cpu" or not torch.cuda.is_available():
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(cpu_threads or threads_set() or max(1, cores // processes_here()))
        return torch.device("cpu")
    if world.local_rank >= torch.cuda.device_count():
        raise UnsupportedLayout(
            f"process {world.local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}.",
            hint=f"Start with --nproc {torch.cuda.device_count()}.",
        )
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


def join_group(device: torch.device, world: World, *, timeout: timedelta, alone: bool = False) -> None:
    """Join the group that the launcher's environment describes, if there is more than one process.

    With `alone` there is a group even of one process, for engines that cannot do without.
    """
    if dist.is_initialized() or (world.size == 1 and not alone):
        return
    # Groups that an engine makes of this one without saying how long to wait: torch's own default would be shorter.
    distributed_c10d.default_pg_nccl_timeout = timeout  # type: ignore[attr-defined]  # read at each use
    global _joined
    dist.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        store=HashStore() if world.size == 1 else _met(world, timeout),
        rank=world.rank,
        world_size=world.size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )
    _joined = True


def _met(world: World, timeout: timedelta) -> Store:
    try:
        return meet(world, timeout)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        raise ConfigError(
            f"Process {world.rank} of {world.size} did not meet the others at {address}, port {port}: "
            f"{str(error).partition(chr(10))[0]}",
            hint="MASTER_ADDR must be the machine of process 0, seen from all, and all processes must be started.",
        ) from error


def leave_group() -> None:
    """Leave it again; a group that was there before, of an inference engine say, is not ours to end."""
    global _joined
    if _joined and dist.is_initialized():
        dist.destroy_process_group()
    _joined = False
