"""Several processes on this machine: torch's elastic launcher, with one worker's output and one error at the end."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from swift.errors import ConfigError
from swift.processes import machines
from swift.processes.group import Group
from swift.processes.reports import Failure, first_error, first_report, read_note_of_stop
from swift.processes.signals import STARTED_BY_SWIFT, Stopped, forwarded_signals

MEETING_TIMEOUT = 900
"""Seconds in which the launchers of all machines must have come."""


def run_workers(group: Group, argv: list[str]) -> int:
    """Start `group.processes` workers with the same command line, wait for them, and return the exit code."""
    os.environ[STARTED_BY_SWIFT] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // group.processes)))
    # The elastic launcher's own reports would repeat what workers say.
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="swift-workers-") as logs, forwarded_signals() as signals:
        try:
            machines.make_known()
            elastic_launch(_config(group, logs), sys.executable)("-m", "swift", *argv)
        except ChildFailedError as failure:
            _fail(failure, Path(logs), signals)
        except (DistError, RendezvousError) as error:
            raise ConfigError(
                f"The {group.size} machines of this run did not meet at {group.address}, port {group.port}: "
                f"{next(iter(str(error).splitlines()), type(error).__name__)}",
                hint="MASTER_ADDR must be the first of them, seen from all, and swift must be started on each.",
            ) from error
        stopped = read_note_of_stop(Path(logs))
    return 0 if stopped is None else 128 + (signals or [stopped])[0]


def _config(group: Group, logs: str) -> LaunchConfig:
    silent = {rank: Std.ALL for rank in range(group.processes) if rank > 0 or group.rank > 0}
    alone = group.size == 1
    return LaunchConfig(
        min_nodes=group.size,
        max_nodes=group.size,
        nproc_per_node=group.processes,
        rdzv_backend="c10d" if alone else machines.BACKEND,
        rdzv_endpoint="localhost:0" if alone else f"{group.address}:{group.port}",
        rdzv_configs={} if alone else {"rank": group.rank},
        rdzv_timeout=MEETING_TIMEOUT,
        run_id="swift",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=logs, redirects=silent),
        # SIGTERM and SIGINT are ours: workers finish their step and save.
        signals_to_handle="SIGQUIT",
    )


def _fail(failure: ChildFailedError, logs: Path, signals: list[int]) -> NoReturn:
    ends = {rank: Failure(each.local_rank, each.exitcode, each.timestamp) for rank, each in failure.failures.items()}
    error = first_report(ends, logs) if signals else first_error(ends, logs)
    if error is None:
        raise Stopped(signals[0]) from None
    raise error from None
