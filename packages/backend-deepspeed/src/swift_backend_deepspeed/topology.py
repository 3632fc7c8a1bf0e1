"""Process group and DeepSpeed's own state around it, and which slice of each batch a process trains on."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from swift.contracts import RequestedRun, Run, Topology
from swift.errors import UnsupportedLayout
from swift.toolkit import choose_device, join_group, leave_group, resolve_dtype
from swift_backend_deepspeed import nvme
from swift_backend_deepspeed.config import DeepSpeedOptions
from swift_backend_deepspeed.ds_json import remarks, resolved, stage_in_force
from swift_backend_deepspeed.layout import data_size


@dataclass
class Session:
    """State to undo at the end of a run, which this backend keeps in `run.backend_state`."""

    variables: dict[str, str | None] = field(default_factory=dict)
    """Variables that were set for DeepSpeed, and their values before."""
    sequence: dist.ProcessGroup | None = None
    """The processes that share each sample with this one."""
    engines: list[Any] = field(default_factory=list)
    """One for each model of the run, to be taken apart."""
    swap_folders: list[Path] = field(default_factory=list)
    """This process's folders of optimizer state on a disk."""

    @classmethod
    def of(cls, run: RequestedRun) -> Session:
        """Return the session that `setup` began."""
        assert isinstance(run.backend_state, cls)
        return run.backend_state

    def set(self, name: str, value: str) -> None:
        """Set an environment variable until the end of the run."""
        self.variables.setdefault(name, os.environ.get(name))
        os.environ[name] = value


def setup(run: RequestedRun) -> Topology:
    """Join the group, tell DeepSpeed of it, and cut it into groups that share samples (neighbours)."""
    session = Session()
    run.keep(session)
    options, parallel, world = run.options(DeepSpeedOptions), run.config.parallel, run.world
    device = choose_device(options.device, world, cpu_threads=options.cpu_threads)
    precision, _ = resolve_dtype(run.config.model.dtype, str(device))
    # DeepSpeed looks for its accelerator and its place when it is imported or first used.
    if device.type == "cpu":
        session.set("DS_ACCELERATOR", "cpu")
    for name, value in (("RANK", world.rank), ("LOCAL_RANK", world.local_rank), ("WORLD_SIZE", world.size)):
        session.set(name, os.environ.get(name, str(value)))
    join_group(device, world, timeout=run.timeout, alone=True)
    _start_deepspeed(device, precision)
    slices = data_size(run)
    sharing = world.size // slices
    if parallel.ulysses > 1:
        firsts = range(0, world.size, parallel.ulysses)
        groups = [dist.new_group(list(range(first, first + parallel.ulysses))) for first in firsts]
        session.sequence = groups[world.rank // parallel.ulysses]
    for remark in remarks(options.content, run.config, precision=precision):
        run.say(remark)
    layout = {"zero": stage_in_force(options.content, precision), "dp": slices}
    layout |= {name: size for name in ("ulysses", "tp") if (size := getattr(parallel, name)) > 1}
    return Topology(world=world, data_rank=world.rank // sharing, data_size=slices, device=str(device), layout=layout)


def engine_config(run: Run) -> tuple[dict[str, Any], torch.dtype]:
    """Return the JSON that DeepSpeed gets, and the precision of the arithmetic."""
    precision, _ = resolve_dtype(run.config.model.dtype, run.topology.device)
    content = run.options(DeepSpeedOptions).content
    config = resolved(content, run.config, precision=precision, world=run.world.size)
    return config, getattr(torch, precision)


def _start_deepspeed(device: torch.device, precision: str) -> None:
    """Import DeepSpeed for this device and let it join the process group that is there."""
    deepspeed = quiet_deepspeed()
    from deepspeed.accelerator import get_accelerator

    name = get_accelerator().device_name()
    if name != device.type:
        raise UnsupportedLayout(
            f"DeepSpeed was imported for {name}, and this run is on {device.type}.",
            hint=f"Set DS_ACCELERATOR={device.type} before Python starts.",
        )
    if precision == "float16" and device.type == "cpu":
        # DeepSpeed asks for processors that have float16 in hardware; torch computes it on all of them.
        get_accelerator().is_fp16_supported = lambda: True
    # All-reduce in shared memory, which training does not use, would be built in C++ first: no operator is compatible.
    vars(deepspeed.ops).setdefault("__compatible_ops__", {})
    deepspeed.init_distributed(dist_backend=dist.get_backend(), verbose=False)


def sequence_group(run: Run) -> dist.ProcessGroup:
    """Return the group of processes that share each sample with this one."""
    group = Session.of(run).sequence
    assert group is not None
    return group


def quiet_deepspeed() -> Any:
    """DeepSpeed, imported; its log says what goes wrong, and nothing else."""
    # It calls collectives by the names that they had before torch 2.13.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed


def teardown(run: RequestedRun) -> None:
    """Leave the groups, and DeepSpeed as it was found."""
    import deepspeed

    session = Session.of(run)
    run.keep(None)
    while session.engines:
        _take_apart(session.engines.pop())
    _forget_groups()
    for folder in session.swap_folders:
        nvme.clear(folder)
    leave_group()
    deepspeed.comm.comm.cdb = None
    for name, value in session.variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _take_apart(engine: Any) -> None:
    """Autograd holds on to parameters whose hooks lead back to them; through these, ZeRO 3 holds all the rest."""
    from deepspeed.runtime.zero import parameter_offload

    module, optimizer = engine.module, engine.optimizer
    engine.destroy()
    parameter_offload.FWD_MODULE_STACK.clear()
    if not hasattr(optimizer, "parameter_offload"):
        return
    for parameter in module.parameters():
        vars(parameter).clear()
        parameter.data = parameter.data.new_empty(0)
    # Each module has classes of its own for its hooks, which lead to it, and which nothing takes away.
    for each in list(module.modules()):
        vars(each).clear()
    vars(optimizer.parameter_offload).clear()
    vars(optimizer).clear()


def _forget_groups() -> None:
    """DeepSpeed keeps groups in variables of a module, for the life of the process."""
    from deepspeed.utils import groups

    for name, value in list(vars(groups).items()):
        if not name.startswith("_") or name.startswith("__") or callable(value):
            continue
        if isinstance(value, dist.ProcessGroup):
            setattr(groups, name, None)
        elif isinstance(value, dict):
            value.clear()
    groups.mpu = None
    groups.mesh_device = None
