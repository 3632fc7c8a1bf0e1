"""Which group of processes this one belongs to, from the variables that launchers and schedulers leave behind.

The first that is there decides:

1. `RANK` and `LOCAL_RANK`: `torchrun`, `deepspeed` or swift itself started this very process. It joins.
2. `NNODES` and `NODE_RANK`: how ms-swift is started on several machines, once on each; or the flags of these names.
3. `PET_NNODES`: Kubeflow's training operator and Trainer tell each pod what `torchrun` would want to know.
4. `MASTER_ADDR`, `RANK` and `WORLD_SIZE`: an older `PyTorchJob`, or anything that sets them once per machine.
5. `SLURM_STEP_NUM_TASKS`: `srun` started several tasks. (`SLURM_NTASKS` is no sign of that: Slurm sets it in the
   batch script too, where one process runs.)

In 2 to 5 each place joins as one process, or starts several of its own with `--nproc N` or `NPROC_PER_NODE=N`.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from swift.config.limits import LARGEST, MOST_PROCESSES
from swift.contracts import World
from swift.errors import ConfigError

PORT = 29500
"""Torch's own default."""
_DIGITS = 20
"""Of a number; more are far too many as it is, and Python refuses thousands."""
_SHOWN = 40


@dataclass(frozen=True)
class Group:
    """The places in which a scheduler started swift (tasks, pods), and which of them this process is."""

    size: int = 1
    rank: int = 0
    local_rank: int = 0
    address: str = "localhost"
    port: int = PORT
    processes: int = 1
    """How many processes each place is to have."""


def current_world(environment: Mapping[str, str] = os.environ) -> World:
    """Return where this process stands, once `launch` has put the variables in place."""
    if "RANK" not in environment:
        return World(rank=0, local_rank=0, size=1)
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE", 1, least=1)
    if size > 1 and not environment.get("MASTER_ADDR"):
        raise ConfigError(
            f"RANK and WORLD_SIZE ({size}) are set, but MASTER_ADDR, the address of the first process, is not.",
            hint="Set it, or train in one process: unset RANK WORLD_SIZE",
        )
    _check_rank(rank, size)
    machines = -(-size // min(size, processes_here(environment, size)))
    return World(rank=rank, local_rank=_number(environment, "LOCAL_RANK", 0), size=size, machines=machines)


def rank_or_zero(environment: Mapping[str, str] = os.environ) -> int:
    """Return the rank of this process for messages; 0 where the variable is missing or invalid."""
    try:
        return _number(environment, "RANK", 0)
    except ConfigError:
        return 0


def processes_here(environment: Mapping[str, str] = os.environ, default: int = 1) -> int:
    """Return how many processes of the run a launcher started on this machine."""
    return _number(environment, "LOCAL_WORLD_SIZE", default, least=1, most=MOST_PROCESSES)


def threads_set(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return how many threads `OMP_NUM_THREADS` gives each process; None where it is not set."""
    first = environment.get("OMP_NUM_THREADS", "").partition(",")[0]  # the next ones are for threads within threads
    return _number({"OMP_NUM_THREADS": first}, "OMP_NUM_THREADS") or 1 if first.strip() else None


def find_group(environment: Mapping[str, str], nproc: int | None = None) -> Group:
    """Return the group of places that this process is one of. `nproc` is what the user asked for, if anything."""
    processes_here(environment)
    threads_set(environment)
    if {"RANK", "LOCAL_RANK"} <= environment.keys():
        current_world(environment)
        _check_member(environment, nproc)
        return Group()
    nproc = nproc or wanted_processes(environment)
    for scheduler in (_numbered, _operator, _by_machine, _slurm):
        group = scheduler(environment, nproc)
        if group is not None:
            _check_rank(group.rank, group.size)
            return group
    return Group(processes=nproc or 1)


def processes_in_all(environment: Mapping[str, str], nproc: int | None = None) -> int:
    """Return how many processes the run has that is started here."""
    group = find_group(environment, nproc)
    return current_world(environment).size if "RANK" in environment else group.size * group.processes


def wanted_group(environment: Mapping[str, str], nproc: int | None = None) -> tuple[int, int]:
    """Return how many processes each machine is to start, and how many machines there are, without joining them."""
    return nproc or wanted_processes(environment) or 1, wanted_machines(environment)


def wanted_processes(environment: Mapping[str, str]) -> int | None:
    """Return how many processes `NPROC_PER_NODE` asks for on each machine; None where it is not set."""
    if not environment.get("NPROC_PER_NODE"):
        return None
    return _processes(environment, "NPROC_PER_NODE")


def wanted_machines(environment: Mapping[str, str]) -> int:
    """Return how many machines `NNODES` asks for."""
    machines = _number(environment, "NNODES", 1) if environment.get("NNODES") else 1
    if machines < 1:
        raise ConfigError("NNODES is 0, and a run takes at least one machine.", hint="unset NNODES")
    return machines


def join(group: Group, environment: MutableMapping[str, str]) -> None:
    """Make this process a member: the variables that torch reads."""
    environment.update(
        RANK=str(group.rank),
        LOCAL_RANK=str(group.local_rank),
        WORLD_SIZE=str(group.size),
        MASTER_ADDR=group.address,
        MASTER_PORT=str(group.port),
    )


def elastic_launcher(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return which launcher started this process and may start it again: its machine, its number and its birth."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    try:
        parent = os.getppid()
        born = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
    return f"{os.uname().nodename} {parent} {born}"


def check_port(environment: Mapping[str, str]) -> None:
    """Refuse a port that another program has, in the process that is to listen on it."""
    if current_world(environment).size == 1 or environment["RANK"] != "0":
        return
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # The launcher listens already.
        return
    check_port_is_free(_port(environment, "MASTER_PORT"))


def check_port_is_free(port: int) -> None:
    """Refuse a port on which the first process cannot listen."""
    dual = socket.has_dualstack_ipv6()
    try:
        socket.create_server(
            ("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual
        ).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port}, where the processes are to meet, is in use by another program on this machine.",
                hint="Name a free one, the same for all processes: export MASTER_PORT=29501",
            ) from None
        raise ConfigError(
            f"The processes cannot meet on port {port}: {error.strerror}.", hint="Set MASTER_PORT to another one."
        ) from None


def alone_in_slurm(environment: Mapping[str, str], processes: int) -> str | None:
    """Return a note for a user whose job has more tasks or machines than this one command uses."""
    if "SLURM_JOB_ID" not in environment or "SLURM_STEP_NUM_TASKS" in environment or "RANK" in environment:
        return None
    tasks, machines = _number(environment, "SLURM_NTASKS", 1), _number(environment, "SLURM_JOB_NUM_NODES", 1)
    if machines == 1 and (tasks == 1 or processes > 1):
        return None
    return (
        f"Slurm set {tasks} tasks on {machines} machine{'s' if machines > 1 else ''} apart for this job, but swift was "
        f"not started by srun and trains with {processes} process{'es' if processes > 1 else ''}. "
        "To use all of them type: srun swift ..."
    )


def _check_member(environment: Mapping[str, str], nproc: int | None) -> None:
    started = environment.get("LOCAL_WORLD_SIZE")
    _port(environment, "MASTER_PORT")
    if nproc is not None and started not in (None, str(nproc)):
        raise ConfigError(
            f"--nproc is {nproc}, but a launcher already started {started} processes on this machine.",
            hint="Leave --nproc out and set the number in the launcher (torchrun --nproc-per-node).",
        )


def _operator(environment: Mapping[str, str], nproc: int | None) -> Group | None:
    if "PET_NNODES" not in environment:
        return None
    address = environment.get("PET_MASTER_ADDR") or environment.get("MASTER_ADDR")
    if not environment["PET_NNODES"].isdecimal() or (address is None and "PET_RDZV_ENDPOINT" in environment):
        raise ConfigError(
            "This pod belongs to an elastic job (PET_NNODES, PET_RDZV_ENDPOINT), whose size may change as it runs.",
            hint="Let torchrun, which reads these variables, start swift: torchrun -m swift ...; "
            "or describe the job without elasticPolicy.",
        )
    return Group(
        size=_number(environment, "PET_NNODES", least=1),
        rank=_number(environment, "PET_NODE_RANK", _number(environment, "RANK", 0)),
        address=address or "localhost",
        port=_port(environment, "PET_MASTER_PORT", _port(environment, "MASTER_PORT")),
        processes=nproc or _processes(environment, "PET_NPROC_PER_NODE"),
    )


def _processes(environment: Mapping[str, str], name: str) -> int:
    """Return how many processes a variable asks for. `auto`, the default of Kubeflow's jobs, is one per GPU."""
    if environment.get(name) in ("auto", "gpu"):
        import torch

        return max(1, torch.cuda.device_count())
    return _number(environment, name, 1, least=1, most=MOST_PROCESSES)


def _numbered(environment: Mapping[str, str], nproc: int | None) -> Group | None:
    """Return the group of machines that are numbered by hand: `NNODES=2 NODE_RANK=0 MASTER_ADDR=... swift sft`."""
    machines = wanted_machines(environment)
    if machines == 1:
        return None
    missing = [name for name in ("NODE_RANK", "MASTER_ADDR") if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"NNODES is {machines}, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set.",
            hint=f"On each machine: NNODES={machines} NODE_RANK=<0 to {machines - 1}> MASTER_ADDR=<the first machine> "
            "MASTER_PORT=29500 NPROC_PER_NODE=<its GPUs> swift ...",
        )
    rank = _number(environment, "NODE_RANK")
    if rank >= machines:
        raise ConfigError(
            f"NODE_RANK is {rank}, and {machines} machines (NNODES) are numbered from 0 to {machines - 1}.",
            hint="Give each machine a number of its own, and the one at MASTER_ADDR 0.",
        )
    return Group(
        size=machines,
        rank=rank,
        address=environment["MASTER_ADDR"],
        port=_port(environment, "MASTER_PORT"),
        processes=nproc or 1,
    )


def _by_machine(environment: Mapping[str, str], nproc: int | None) -> Group | None:
    if not {"RANK", "WORLD_SIZE"} <= environment.keys() or not environment.get("MASTER_ADDR"):
        return None
    return Group(
        size=_number(environment, "WORLD_SIZE", least=1),
        rank=_number(environment, "RANK"),
        address=environment["MASTER_ADDR"],
        port=_port(environment, "MASTER_PORT"),
        processes=nproc or 1,
    )


def _slurm(environment: Mapping[str, str], nproc: int | None) -> Group | None:
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", 1)
    if tasks == 1:
        return None
    machines = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "localhost")
    # A task that sees no other GPU than its own (--gpus-per-task) finds it at 0, wherever it stands on its machine.
    own_gpu = environment.get("CUDA_VISIBLE_DEVICES", "").isdecimal()
    return Group(
        size=tasks,
        rank=_number(environment, "SLURM_PROCID"),
        local_rank=0 if own_gpu else _number(environment, "SLURM_LOCALID", 0),
        address=environment.get("MASTER_ADDR") or first_machine(machines),
        port=_port(environment, "MASTER_PORT", _slurm_port(environment)),
        processes=nproc or 1,
    )


def first_machine(machines: str) -> str:
    """Return the first of a list as Slurm writes it: `gpu[003-005,9],big1` begins with gpu003."""
    first = re.match(r"(?:[^\[\],]|\[[^\[\]]*\])+", machines)
    if first is None:
        raise ConfigError(f"Slurm's list of machines cannot be read: {machines!r}.", hint="Set MASTER_ADDR yourself.")
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first.group())


def _slurm_port(environment: Mapping[str, str]) -> int:
    """Return a port that all tasks of a step derive alike, and two steps most likely not.

    Below those given to clients.
    """
    job, step = _number(environment, "SLURM_JOB_ID", 0), _number(environment, "SLURM_STEP_ID", 0)
    return 15000 + (job + 7919 * step) % 15000


def _check_rank(rank: int, size: int) -> None:
    if rank >= size:
        raise ConfigError(
            f"RANK is {rank}, but WORLD_SIZE is {size}: ranks go from 0 to {size - 1}.",
            hint="Set them as torchrun does, or train in one process: unset RANK WORLD_SIZE",
        )


def _port(environment: Mapping[str, str], name: str, default: int = PORT) -> int:
    return _number(environment, name, default, least=1, most=65535)


def _number(
    environment: Mapping[str, str], name: str, default: int | None = None, *, least: int = 0, most: int = LARGEST
) -> int:
    value = environment.get(name)
    if value is None and default is not None:
        return default
    digits = "" if value is None else value.strip()
    number = int(digits[:_DIGITS]) if digits.isascii() and digits.isdecimal() else -1
    if not least <= number <= most:
        bounds = "" if number < 0 else f" from {least} to {most}"
        shown = repr(value) if value is None or len(value) <= _SHOWN else f"{value[:_SHOWN]!r}..."
        raise ConfigError(
            f"The environment variable {name} must be a whole number{bounds}, but is {shown}.",
            hint=f"Correct it, or train in one process: unset {name}",
        )
    return number
