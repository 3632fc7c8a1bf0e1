"""Process group and device. Every process trains on a slice of its own."""

from __future__ import annotations

from swift.backends.base import TorchOptions
from swift.contracts import RequestedRun, Topology
from swift.processes.device import choose_device, join_group


def setup(run: RequestedRun) -> Topology:
    """Set up data parallel over all processes."""
    options = run.options(TorchOptions)
    device = choose_device(options.device, run.world, cpu_threads=options.cpu_threads)
    join_group(device, run.world, timeout=run.timeout)
    return Topology(
        world=run.world,
        data_rank=run.world.rank,
        data_size=run.world.size,
        device=str(device),
        layout={"dp_replicate": run.world.size},
    )
