"""Process group and meshes, and which slice of each batch a process trains on."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import _collective_utils, _redistribute, debug

from swift.contracts import ProcessLayout, RequestedRun, Run, Topology
from swift.toolkit import choose_device, join_group, leave_group
from swift_backend_fsdp.config import FsdpConfig
from swift_backend_fsdp.layout import layout_of


@dataclass(frozen=True)
class Meshes:
    """The groups of one process: what FSDP keeps in `run.backend_state`, shared by all models of the run."""

    sizes: ProcessLayout
    fsdp: DeviceMesh
    """What `fully_shard` is given: one dimension, or two where replicas are kept."""
    tp: DeviceMesh
    experts: DeviceMesh | None
    """The same for experts, under expert parallel: the processes that have the same ones."""
    ep: DeviceMesh | None
    """Processes that have other experts: neighbours among those of `shards`."""
    sequence: dist.ProcessGroup
    """Processes that share each sample."""
    slices: dist.ProcessGroup
    """Processes that train on other samples and are otherwise like this one."""
    shards: dist.ProcessGroup
    """Processes that hold the shards of one replica's tensors, each as tensor parallelism leaves it to them."""
    parts: dist.ProcessGroup
    """Processes that hold the parts of one replica: shards, times tensor parallelism."""


def meshes_of(run: Run) -> Meshes:
    """Return the meshes that `setup` made."""
    assert isinstance(run.backend_state, Meshes)
    return run.backend_state


def setup(run: RequestedRun) -> Topology:
    """Join the group, and cut it into meshes. Neighbours share tensors first, then sequences, then data."""
    options = run.options(FsdpConfig)
    device = choose_device(options.device, run.world, cpu_threads=options.cpu_threads)
    sizes = layout_of(run.config, run.world.size)
    # FSDP wants a group even of one.
    join_group(device, run.world, timeout=run.timeout, alone=True)
    names = ("replicate", "data", "sequence", "tp")
    root = init_device_mesh(device.type, (sizes.replicate, sizes.shard, sizes.sequence, sizes.tp), mesh_dim_names=names)
    shard = root["data", "sequence"]._flatten("shard")
    slices = root["replicate", "data"]._flatten("slices")
    experts, ep = _expert_meshes(device.type, sizes) if sizes.ep > 1 else (None, None)
    meshes = Meshes(
        sizes=sizes,
        fsdp=root["replicate", "shard"] if sizes.replicate > 1 else shard,
        tp=root["tp"],
        experts=experts,
        ep=ep,
        sequence=root["sequence"].get_group(),
        slices=slices.get_group(),
        shards=shard.get_group(),
        parts=(root["data", "sequence", "tp"]._flatten("parts") if sizes.tp > 1 else shard).get_group(),
    )
    run.keep(meshes)
    return Topology(
        world=run.world,
        data_rank=slices.get_local_rank(),
        data_size=sizes.data,
        device=str(device),
        layout=sizes.named("dp_shard"),
    )


def _expert_meshes(device: str, sizes: ProcessLayout) -> tuple[DeviceMesh, DeviceMesh]:
    """Cut the shards of each replica once more, for experts: those that are sharded together, and expert parallel."""
    shape = (sizes.replicate, sizes.expert_data // sizes.replicate, sizes.ep)
    root = init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard", "ep"))
    return root["replicate", "shard"] if sizes.replicate > 1 else root["shard"], root["ep"]


def teardown(run: RequestedRun) -> None:
    """Leave all groups."""
    run.keep(None)
    _forget_meshes()
    leave_group()


def _forget_meshes() -> None:
    """DTensor keeps meshes with what it has learned of operators, and meshes keep their groups and ports alive."""
    for owner, name in (
        (debug, "_clear_sharding_prop_cache"),
        (_redistribute, "clear_redistribute_planner_cache"),
        (_redistribute, "_gen_transform_infos"),
        (_collective_utils.MeshTopoInfo, "build_from_mesh"),
    ):
        remembered = getattr(owner, name, None)  # not in every version of torch
        forget = getattr(remembered, "cache_clear", remembered)
        if forget is not None:
            forget()
