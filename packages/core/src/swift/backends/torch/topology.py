"""Process group and device. Every process trains on a slice of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.backends.torch.config import TorchConfig
from swift.contracts import Topology
from swift.errors import UnsupportedPlan
from swift.processes.device import choose_device, join_group

if TYPE_CHECKING:
    from swift.contracts import Run


def setup(run: Run) -> Topology:
    """Set up data parallel over all processes."""
    options = run.options(TorchConfig)
    device = choose_device(options.device, run.world, cpu_threads=options.cpu_threads)
    replicas = run.config.parallel.dp_replicate
    if replicas not in (None, run.world.size):
        raise UnsupportedPlan(
            f"parallel.dp_replicate is {replicas}, but {run.world.size} processes were started.",
            hint=f"Leave it out, or start with --nproc {replicas}.",
        )
    join_group(device, run.world, timeout=run.timeout)
    return Topology(
        world=run.world,
        data_rank=run.world.rank,
        data_size=run.world.size,
        device=str(device),
        layout={"dp_replicate": run.world.size},
    )
