"""From a command to processes: joins the group that a launcher made, or starts torch's elastic launcher in process.

No launcher of our own. The environment decides, first match wins:

1. `torchrun` or `deepspeed` (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`): join.
2. A `PyTorchJob` or anything that sets `MASTER_ADDR`, `WORLD_SIZE` and `RANK` per machine: join, or with `--nproc N`
   start N processes on each machine.
3. Slurm (`srun`): join as one of the tasks, or with `--nproc N` start N processes in each task.
4. `--nproc N`: N processes on this machine.
5. Otherwise this process alone.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swift.contracts import World
from swift.errors import ConfigError, SwiftError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from swift.config.parse import Parsed
    from swift.contracts import RunSummary

STARTED_BY_SWIFT = "SWIFT_WORKER"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


@dataclass(frozen=True)
class Nodes:
    """Machines that take part, when this process is to start workers."""

    count: int = 1
    rank: int = 0
    address: str = "localhost"
    port: int = 0


def current_world(environment: Mapping[str, str] = os.environ) -> World:
    """Where this process stands, once `launch` has put the variables in place."""
    return World(
        rank=int(environment.get("RANK", "0")),
        local_rank=int(environment.get("LOCAL_RANK", "0")),
        size=int(environment.get("WORLD_SIZE", "1")),
    )


def launch(parsed: Parsed, argv: list[str]) -> int:
    """Run the training that `parsed` describes; returns the exit code of the command."""
    nodes = plan_workers(os.environ, parsed.nproc)
    if nodes is None:
        with reported_errors():
            from swift.train.loop import train

            return exit_code(train(parsed))
    return _start_workers(nodes, parsed.nproc or 1, argv)


def exit_code(summary: RunSummary) -> int:
    """0 when the run was completed; 128 + signal number when a signal ended it early, so that `&&` does not go on.

    A worker of ours answers 0 all the same: the launcher got the signal too, and would take anything else for a crash.
    """
    if summary.signal is None or STARTED_BY_SWIFT in os.environ:
        return 0
    return 128 + summary.signal


def plan_workers(environment: MutableMapping[str, str], nproc: int | None) -> Nodes | None:
    """None to train in this process (after completing the variables that torch reads), else where workers start."""
    many = (nproc or 1) > 1
    if "LOCAL_RANK" in environment and "RANK" in environment:
        return None
    if {"MASTER_ADDR", "RANK", "WORLD_SIZE"} <= environment.keys():
        count, rank = int(environment["WORLD_SIZE"]), int(environment["RANK"])
        if many:
            return Nodes(count, rank, environment["MASTER_ADDR"], int(environment.get("MASTER_PORT", "29500")))
        environment["LOCAL_RANK"] = "0"
        return None
    tasks = int(environment.get("SLURM_NTASKS", "1"))
    if tasks > 1 and "SLURM_PROCID" in environment:
        address, port = _slurm_address(environment)
        if many:
            return Nodes(tasks, int(environment["SLURM_PROCID"]), address, port)
        environment.update(
            RANK=environment["SLURM_PROCID"],
            LOCAL_RANK=environment.get("SLURM_LOCALID", "0"),
            WORLD_SIZE=str(tasks),
            MASTER_ADDR=address,
            MASTER_PORT=str(port),
        )
        return None
    return Nodes() if many else None


def _slurm_address(environment: Mapping[str, str]) -> tuple[str, int]:
    """The first machine of the job, and a port that all tasks derive alike."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "localhost")
    # 'gpu[003-005,9],big1' begins with gpu003.
    match = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    if match is None:
        raise ConfigError(f"The list of Slurm nodes cannot be read: {nodes!r}.", hint="Set MASTER_ADDR yourself.")
    job = int(re.sub(r"\D", "", environment.get("SLURM_JOB_ID", "0")) or 0)
    address = environment.get("MASTER_ADDR", match.group(1) + (match.group(2) or ""))
    return address, int(environment.get("MASTER_PORT", 20000 + job % 20000))


def _start_workers(nodes: Nodes, nproc: int, argv: list[str]) -> int:
    """Torch's elastic launcher, with one worker's output on the terminal and one error at the end."""
    import tempfile

    import torch
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from swift.train.signals import forwarded_signals

    if torch.cuda.is_available() and nproc > torch.cuda.device_count():
        raise ConfigError(
            f"--nproc {nproc} asks for more processes than this machine has GPUs ({torch.cuda.device_count()}).",
            hint=f"Type: --nproc {torch.cuda.device_count()}",
        )
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="swift-workers-") as logs:
        quiet = {rank: Std.ALL for rank in range(nproc) if rank > 0 or nodes.rank > 0}
        config = LaunchConfig(
            min_nodes=nodes.count,
            max_nodes=nodes.count,
            nproc_per_node=nproc,
            rdzv_backend="c10d" if nodes.count == 1 else "static",
            rdzv_endpoint=f"{nodes.address}:{nodes.port}",
            rdzv_configs={"rank": nodes.rank, "timeout": 900},
            run_id=f"swift-{os.getpid()}" if nodes.count == 1 else "swift",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=logs, redirects=quiet),
        )
        os.environ[STARTED_BY_SWIFT] = "1"
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // nproc)))
        try:
            with forwarded_signals() as received:
                elastic_launch(config, sys.executable)("-m", "swift", *argv)
        except ChildFailedError as failure:
            _raise_first(failure)
        finally:
            os.environ.pop(STARTED_BY_SWIFT, None)
        return 128 + received[0] if received else 0


def _raise_first(failure: object) -> None:
    """Turn the report of the worker that failed first into the error of this command."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    assert isinstance(failure, ChildFailedError)
    reports = {rank: _read_report(Path(each.error_file)) for rank, each in failure.failures.items()}
    # Once one process is gone the others fail too: the earliest report is the cause.
    rank = min(reports, key=lambda rank: float((reports[rank] or {"time": "inf"})["time"]))
    report, first = reports[rank], failure.failures[rank]
    if report is None:
        ended = f"signal {-first.exitcode}" if first.exitcode < 0 else f"exit code {first.exitcode}"
        tail = _tail(Path(first.error_file).parent / "stderr.log")
        error = SwiftError(f"Process {rank} ended with {ended} without saying why.", hint=tail or None)
    else:
        error = SwiftError(report["message"])
        error.exit_code = int(report["exit_code"])
    raise error from None


def _read_report(path: Path) -> dict[str, str] | None:
    try:
        report = json.loads(path.read_text())["message"]["swift"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(report)


def _tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


@contextmanager
def reported_errors() -> Iterator[None]:
    """In a worker: leave the error where the launcher finds it, so that the user reads it once.

    Under a foreign launcher nobody reads that file, so the failing process prints its error itself; others hold back
    for a moment in which the launcher ends them, since most errors strike every process alike.
    """
    world = current_world()
    try:
        yield
    except Exception as error:
        if world.size == 1 and STARTED_BY_SWIFT not in os.environ:
            raise
        code = error.exit_code if isinstance(error, SwiftError) else 1
        user_error = isinstance(error, SwiftError) and "SWIFT_TRACEBACK" not in os.environ
        message = str(error) if user_error else f"Process {world.rank} failed:\n{traceback.format_exc()}"
        _write_report(message, code)
        if STARTED_BY_SWIFT not in os.environ:
            if world.rank != 0:
                time.sleep(5)
            print(f"Error: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the last words of a worker
        # Not sys.exit: threads of a dead process group would keep the interpreter alive.
        sys.stdout.flush()
        os._exit(code)


def _write_report(message: str, code: int) -> None:
    path = os.environ.get(ERROR_FILE)
    if path:
        now = str(int(time.time()))
        swift = {"message": message, "exit_code": code, "time": time.time()}
        report = {"message": {"message": message, "extraInfo": {"timestamp": now, "py_callstack": ""}, "swift": swift}}
        Path(path).write_text(json.dumps(report))
