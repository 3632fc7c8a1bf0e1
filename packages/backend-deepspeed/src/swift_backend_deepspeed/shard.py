"""Hands the model to DeepSpeed: partitions, optimizer and engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from swift.contracts import Run, Slot
from swift.toolkit import (
    Arithmetic,
    ViewModule,
    base_model,
    build_optimizer,
    copy_tails,
    cut_modules,
    fill,
    parameter_groups,
    rates_of_parts,
    slots_of,
    tensor_parallel_spec,
)
from swift_backend_deepspeed import nvme
from swift_backend_deepspeed.diagnosis import Watch
from swift_backend_deepspeed.ds_json import offload_device
from swift_backend_deepspeed.model import BuiltModel, EngineRoot, EngineView
from swift_backend_deepspeed.partitions import Partitions, partitions_of
from swift_backend_deepspeed.tensor_parallel import (
    adapters_opened,
    check_same,
    partition_config,
    probe,
    record_full_shapes,
    tensor_group,
    tensor_shard_of,
)
from swift_backend_deepspeed.topology import Session, engine_config, quiet_deepspeed


@dataclass
class DeepSpeedState:
    """The training state of one process."""

    engine: Any
    view: ViewModule
    partitions: Partitions
    arithmetic: Arithmetic
    stage: int
    watch: Watch
    slots: Mapping[str, Slot]
    """What the optimizer keeps for each weight."""
    step: int = 0

    @property
    def moments(self) -> tuple[str, ...]:
        """The slots that are like the weight, and are cut as it is."""
        return tuple(name for name, slot in self.slots.items() if slot.shape == "like")

    @property
    def model(self) -> nn.Module:
        """The transformers (or PEFT) model itself."""
        return self.view.model

    @property
    def engine_view(self) -> EngineView:
        """The engine as a view."""
        return EngineView(self.engine)

    def gather(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the full parameter, gathered from all processes."""
        gathered, tensor_shard = self.partitions.gather(parameter), tensor_shard_of(parameter)
        return gathered if tensor_shard is None else tensor_shard.gather(gathered)


def shard(run: Run, model: BuiltModel) -> DeepSpeedState:
    """Partition → optimizer → engine → exact fp32 weights."""
    deepspeed, session = quiet_deepspeed(), Session.of(run)
    device = torch.device(run.topology.device)
    config, compute = engine_config(run)
    run.facts["deepspeed"] = json.dumps(config)
    view, module = model.view, model.view.model
    root = EngineRoot(view)
    if model.on_meta:
        _shard_and_fill(run, model, root, config, compute)
    else:
        _to_precision(module, compute)
    groups = parameter_groups(
        module.named_parameters(), run.config.optim, run.config.tuner, rates=rates_of_parts(run.config, module)
    )
    offloaded_to = offload_device(config, "offload_optimizer")
    if offloaded_to != "none":
        config["zero_force_ds_cpu_optimizer"] = False
    if offloaded_to == "nvme":
        session.swap_folders.append(nvme.prepare(run, config))
    optimizer = build_optimizer(
        groups, run.config.optim, run.config.learning_rate, device if offloaded_to == "none" else "cpu"
    )
    tensor_parallel = run.config.parallel.tp > 1
    if tensor_parallel:
        plan = tensor_parallel_spec(module, ways=run.config.parallel.tp)
        tokens = view.probe(lengths=(7, 4))
        before = probe(view, tokens, view.comparable)
        config["tensor_parallel"] |= partition_config(module, config["tensor_parallel"])
    with adapters_opened(module) if tensor_parallel else nullcontext():
        engine, *_ = deepspeed.initialize(model=root, optimizer=optimizer, config=config, dist_init_required=False)
    session.engines.append(engine)
    state = DeepSpeedState(
        engine=engine,
        view=view,
        partitions=partitions_of(engine),
        # DeepSpeed has its own precision and its own scaler.
        arithmetic=Arithmetic(device, torch.float32, torch.amp.GradScaler(device.type, enabled=False)),
        stage=int(engine.zero_optimization_stage()),
        watch=Watch(offloaded_to, run.say),
        slots=slots_of(run.config.optim),
    )
    if model.on_meta:
        with torch.no_grad():
            engine.eval()
            engine(None)
    if tensor_parallel:
        engine.first_dataloader_check.remove()  # compares pickled arguments; the batch plan is the same everywhere
        record_full_shapes(module)
        copy_tails(base_model(module), plan, tensor_group())
        cut_modules(run, module, plan, tensor_group())
        after = probe(state.engine_view, tokens, view.comparable)
        check_same(type(base_model(module)).__name__, before, after, exact=compute is torch.float32)
    if compute is not torch.float32:
        _exact_masters(run, model, state)
    return state


def _to_precision(model: nn.Module, compute: torch.dtype) -> None:
    """Convert all weights to one precision, adapters too; DeepSpeed keeps fp32 copies of the trained ones."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(compute)


def _shard_and_fill(
    run: Run, built: BuiltModel, root: EngineRoot, config: dict[str, Any], compute: torch.dtype
) -> None:
    """Allocate, partition and read parameters one at a time: no process ever holds two full ones.

    Quantised weights are partitioned already.
    """
    from deepspeed import zero

    init = zero.Init(config_dict_or_path=config, dtype=compute)
    partitioned: dict[int, nn.Parameter] = {}
    for module in root.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if hasattr(parameter, "ds_id") and id(parameter) not in partitioned:
                continue
            if id(parameter) not in partitioned:
                memory = torch.empty(parameter.shape, dtype=compute, device=init.local_device)
                fresh = nn.Parameter(memory, requires_grad=parameter.requires_grad)
                init._convert_to_zero_parameters([fresh])
                partitioned[id(parameter)] = fresh
                partitioned[id(fresh)] = fresh
            setattr(module, name, partitioned[id(parameter)])
    device = torch.device(run.topology.device)
    for module in root.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    fill(run, built.view.model, built.source, copy_shard)
    # The root uses the head's weight without calling the head: DeepSpeed is told to gather it for the root.
    head = built.view.causal_lm.get_output_embeddings()
    for parameter in head.parameters() if head is not None else ():
        zero.register_external_parameter(root, parameter)


def copy_shard(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy this process's partition of a parameter that ZeRO 3 has partitioned, or all of another tensor."""
    partition = getattr(tensor, "ds_tensor", None)
    if partition is None:
        tensor.copy_(whole)
        return
    start = partition.ds_numel * dist.get_rank(tensor.ds_process_group)  # type: ignore[attr-defined]  # DeepSpeed's
    values = whole.reshape(-1)[start : start + partition.ds_numel]
    partition.data.zero_()
    partition.data[: values.numel()].copy_(values)
    if tensor.numel() == whole.numel():  # small ones are replicated as well
        tensor.data.copy_(whole.view(tensor.shape))


@torch.no_grad()
def _exact_masters(run: Run, built: BuiltModel, state: DeepSpeedState) -> None:
    """Read the fp32 weights again: DeepSpeed made them from the working ones, which lost digits."""

    def keep(tensor: torch.Tensor, whole: torch.Tensor) -> None:
        if not isinstance(tensor, nn.Parameter):
            return
        fragment, tensor_shard = state.partitions.fragment(tensor), tensor_shard_of(tensor)
        if tensor_shard is not None:
            whole = tensor_shard.slice_of(whole)
        if fragment is not None:
            fragment.values.copy_(whole.reshape(-1)[fragment.start : fragment.start + fragment.values.numel()])

    fill(run, state.model, built.source, keep)
    state.partitions.release()
