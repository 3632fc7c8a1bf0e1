"""Shards the model, fills the shards, and makes the optimizer over this process's shards."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils import _pytree

from swift.contracts import ModelView, Need
from swift.errors import UnsupportedLayout
from swift.toolkit import (
    Arithmetic,
    SequenceView,
    Turns,
    ViewModule,
    add_placements,
    base_model,
    build_optimizer,
    fill,
    head_of,
    parameter_groups,
    rates_of_parts,
    slots_of,
    trains_on_images,
    value_head_of,
)
from swift_backend_fsdp.config import FsdpConfig
from swift_backend_fsdp.local import keep, local_slice
from swift_backend_fsdp.model import MetaModel
from swift_backend_fsdp.tensor_parallel import shard_tensors
from swift_backend_fsdp.topology import Meshes, meshes_of

if TYPE_CHECKING:
    from swift.contracts import Run, Slot
    from swift.data.batch import MicroBatch

# FSDP looks for tensors in what a module returns, and knows only registered dataclasses.
if ModelView not in _pytree.SUPPORTED_NODES:
    _pytree.register_dataclass(ModelView)


class FsdpRoot(nn.Module):
    """FsdpRoot module for FSDP: embedding, head and last norm are gathered for the whole pass, blocks one by one."""

    def __init__(self, view: ViewModule) -> None:
        super().__init__()
        self.view = view

    def forward(self, batch: MicroBatch | None, needs: Collection[Need] = ()) -> ModelView | None:
        """Return the views of a micro-batch; without one the view checks itself, which takes gathered weights too."""
        if batch is None:
            self.view.self_check()
            return None
        if isinstance(self.view, SequenceView):
            return self.view.forward_sharded(batch, needs)
        view: ModelView = self.view(batch, needs)
        return view

    def reshard_all(self) -> None:
        """Reshard, which a forward pass without a backward pass leaves undone: parameters are DTensors again."""
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


@dataclass
class TrainedShard:
    """A trained parameter, and this process's shard of it."""

    name: str
    parameter: nn.Parameter
    """As FSDP knows it: a DTensor."""
    local: nn.Parameter
    """The shard's memory as a plain tensor, for the optimizer."""


@dataclass
class FsdpState:
    """The training state of one process."""

    root: FsdpRoot
    parts: list[TrainedShard]
    partial: set[str]
    """Parameters whose gradients are summed over the tensor parallel processes."""
    optimizer: torch.optim.Optimizer
    slots: Mapping[str, Slot]
    """What the optimizer keeps for each weight."""
    arithmetic: Arithmetic
    meshes: Meshes
    step: int = 0
    sees: bool = False
    """Whether weights are trained that only images reach."""
    turns: Turns | None = None
    """Who of the weights has a turn, where they take turns."""

    @property
    def view(self) -> ViewModule:
        return self.root.view

    @property
    def model(self) -> nn.Module:
        """The transformers (or PEFT) model itself."""
        return self.view.model


def shard(run: Run, model: MetaModel) -> FsdpState:
    """Tensor parallel → FSDP, block by block → memory → weights → optimizer."""
    options, meshes = run.options(FsdpConfig), meshes_of(run)
    arithmetic = Arithmetic.of(run)
    partial = shard_tensors(run, model.view.model, meshes.tp) if meshes.sizes.tp > 1 else set()
    root = FsdpRoot(model.view)
    _fully_shard(root, model.blocks, meshes, options, arithmetic)
    if not model.filled:
        _allocate(root, "cpu" if options.offload else arithmetic.device, buffers=meshes.fsdp.device_type)
        fill(run, model.view.model, model.source, keep)
    _check(root, meshes)
    root.reshard_all()
    # FSDP has seen all weights that are ever trained by now; those without a turn only wait.
    turns = Turns.of(run, model.view.model)
    if turns is not None:
        turns.take(0)
    parts, optimizer = _optimizer(run, model.view.model, meshes, arithmetic)
    return FsdpState(
        root=root,
        parts=parts,
        partial=partial,
        optimizer=optimizer,
        slots=slots_of(run.config.optim),
        arithmetic=arithmetic,
        meshes=meshes,
        sees=trains_on_images(run, model.view.model),
        turns=turns,
    )


@torch.no_grad()
def _check(root: FsdpRoot, meshes: Meshes) -> None:
    """Let the view check itself, and refuse types whose code cannot be computed in shards."""
    kind = type(base_model(root.view.model)).__name__
    try:
        root(None)
    except (
        ValueError
    ) as error:  # FSDP finds weights that blocks share: it gathers and frees those of each by themselves
        raise UnsupportedLayout(
            f"{kind} cannot be sharded block by block: {error}", hint="Type --backend deepspeed"
        ) from error
    except RuntimeError as error:  # code that counts its own heads
        if meshes.sizes.tp == 1 or isinstance(error, torch.OutOfMemoryError | dist.DistError):
            raise
        raise UnsupportedLayout(
            f"{kind} cannot be computed with sharded matrices: {str(error).splitlines()[0]}.",
            hint="Type --parallel.tp 1",
        ) from error


def take_turn(run: Run, state: FsdpState, step: int) -> None:
    """Let the weights of a step have their turn, where they take turns: the optimizer is made for them alone."""
    if state.turns is not None and state.turns.take(step):
        state.parts, state.optimizer = _optimizer(run, state.model, state.meshes, state.arithmetic)


def _optimizer(
    run: Run, model: nn.Module, meshes: Meshes, arithmetic: Arithmetic
) -> tuple[list[TrainedShard], torch.optim.Optimizer]:
    config = run.config
    groups = parameter_groups(model.named_parameters(), config.optim, config.tuner, rates=rates_of_parts(config, model))
    add_placements(groups, model, region_of=lambda parameter: local_slice(parameter)[1], processes=meshes.parts)
    parts: list[TrainedShard] = []
    for group in groups:
        own = [_trained_shard(name, each) for name, each in zip(group["names"], group["params"], strict=True)]
        parts += own
        group["params"] = [each.local for each in own]
    device = "cpu" if run.options(FsdpConfig).offload else arithmetic.device
    return parts, build_optimizer(groups, config.optim, config.learning_rate, device)


def _fully_shard(
    root: FsdpRoot, blocks: list[nn.Module], meshes: Meshes, options: FsdpConfig, arithmetic: Arithmetic
) -> None:
    compute = None if arithmetic.compute is torch.float32 else arithmetic.compute
    offload: OffloadPolicy = OffloadPolicy()
    if options.offload:
        offload = CPUOffloadPolicy(pin_memory=arithmetic.device.type == "cuda")
    reduce = torch.float32 if options.reduce_dtype == "float32" else arithmetic.compute
    settings: dict[str, Any] = {
        "mesh": meshes.fsdp,
        "mp_policy": MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce, cast_forward_inputs=False),
        "offload_policy": offload,
    }
    for block in blocks:
        fully_shard(block, reshard_after_forward=options.reshard_after_forward, **settings)
    model = base_model(root.view.model)
    head = head_of(model) or value_head_of(model)
    if head is not None:  # computes in fp32, whatever the blocks do
        fully_shard(head, **{**settings, "mp_policy": MixedPrecisionPolicy(cast_forward_inputs=False)})
    fully_shard(root, reshard_after_forward=False, **settings)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # Losses are divided by the weight of the global batch: gradients are added up, never averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    sharded: list[FSDPModule] = [block for block in blocks if isinstance(block, FSDPModule)]
    for index, each in enumerate(sharded if options.prefetch > 1 else ()):
        each.set_modules_to_forward_prefetch(sharded[index + 1 : index + 1 + options.prefetch])
        each.set_modules_to_backward_prefetch(sharded[max(0, index - options.prefetch) : index][::-1])


def _allocate(root: FsdpRoot, device: torch.device | str, *, buffers: str) -> None:
    """Allocate parameters on one device; buffers were computed, and are moved to theirs."""
    computed = {
        (module, name): buffer
        for module in root.modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
    }
    root.to_empty(device=device)
    for (module, name), buffer in computed.items():
        module._buffers[name] = buffer.to(buffers)


def _trained_shard(name: str, parameter: nn.Parameter) -> TrainedShard:
    local, _ = local_slice(parameter)
    return TrainedShard(name, parameter, nn.Parameter(local.detach()))
