"""Process group and device. Every process trains on a slice of its own."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from swift.contracts import Topology
from swift.errors import UnsupportedPlan

if TYPE_CHECKING:
    from swift.backends.torch.config import TorchConfig
    from swift.contracts import Run


def setup(run: Run) -> Topology:
    """Join the group that the launcher's environment describes, if there is more than one process."""
    options: TorchConfig = run.backend_options  # type: ignore[assignment]  # validated by config_model
    device = _device(options.device, run.world.local_rank)
    replicas = run.config.parallel.dp_replicate
    if replicas not in (None, run.world.size):
        raise UnsupportedPlan(
            f"parallel.dp_replicate is {replicas}, but {run.world.size} processes were started.",
            hint=f"Leave it out, or start with --nproc {replicas}.",
        )
    if device.type == "cpu":
        torch.set_num_threads(options.cpu_threads or _share_of_cores())
    if run.world.size > 1 and not dist.is_initialized():
        dist.init_process_group(
            backend="nccl" if device.type == "cuda" else "gloo",
            timeout=timedelta(minutes=options.timeout_minutes),
            device_id=device if device.type == "cuda" else None,
        )
    return Topology(
        world=run.world,
        data_rank=run.world.rank,
        data_size=run.world.size,
        device=str(device),
        layout={"dp_replicate": run.world.size},
    )


def teardown(run: Run) -> None:
    """Leave the group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _device(wanted: str, local_rank: int) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UnsupportedPlan(
            "backend.device is cuda, but no NVIDIA GPU can be used here.", hint="Leave it out to train on the CPU."
        )
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise UnsupportedPlan(
            f"process {local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}.",
            hint=f"Start with --nproc {torch.cuda.device_count()}.",
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _share_of_cores() -> int:
    if "OMP_NUM_THREADS" in os.environ:
        return max(1, int(os.environ["OMP_NUM_THREADS"]))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, len(os.sched_getaffinity(0)) // here)
