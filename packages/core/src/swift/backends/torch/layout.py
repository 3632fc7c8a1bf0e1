"""Which plans cannot be honoured, before anything is set up."""

from __future__ import annotations

from swift.contracts import RequestedRun
from swift.errors import UnsupportedLayout
from swift.models.fp8 import check_fp8


def check_run(run: RequestedRun) -> None:
    """Refuse a number of replicas that was not started, and FP8 where it cannot be."""
    check_fp8(run)
    replicas = run.config.parallel.dp_replicate
    if replicas not in (None, run.world.size):
        raise UnsupportedLayout(
            f"parallel.dp_replicate is {replicas}, but {run.world.size} processes were started.",
            hint=f"Remove it, or start with --nproc {replicas}.",
        )
