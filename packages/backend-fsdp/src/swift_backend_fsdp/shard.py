"""Shards the model, fills the shards, and trains them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils import _pytree

from swift.contracts import ForwardResult, ModelView, Need, Objective, Run
from swift.data.batch import Batch, MicroBatch
from swift.errors import UnsupportedLayout
from swift.toolkit import (
    Arithmetic,
    Piece,
    SequenceView,
    TensorSlices,
    TorchState,
    ViewModule,
    add_placements,
    base_model,
    build_optimizer,
    fill,
    head_of,
    region_slices,
    score,
    value_head_of,
)
from swift_backend_fsdp import gradients
from swift_backend_fsdp.config import FsdpConfig
from swift_backend_fsdp.expert_parallel import shard_experts
from swift_backend_fsdp.gradients import TrainedShard
from swift_backend_fsdp.model import MetaModel
from swift_backend_fsdp.tensor_parallel import shard_tensors
from swift_backend_fsdp.topology import Meshes, meshes_of

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

    def gather_each_once(self) -> None:
        """Gather each unit, and free it: FSDP accumulates no gradients of one that it has never gathered.

        Such as the encoder of a model that trains on text alone.
        """
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.unshard()
                module.reshard()

    def reshard_all(self) -> None:
        """Reshard, which a forward pass without a backward pass leaves undone: parameters are DTensors again."""
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


class FsdpState(TorchState):
    """The training state of one process."""

    meshes: Meshes
    root: FsdpRoot
    partial: set[str]
    """Parameters whose gradients are summed over the tensor parallel processes."""
    parts: list[TrainedShard]

    def distribute(self, run: Run, model: MetaModel) -> ViewModule:
        """Tensor or expert parallel → FSDP, block by block → memory → weights."""
        options, meshes, view = run.options(FsdpConfig), meshes_of(run), model.view
        self.meshes, self.reduces_each = meshes, options.reduce == "micro_batch"
        experts = shard_experts(view.model, meshes.ep) if meshes.ep is not None else []
        self.partial = shard_tensors(run, view, meshes.tp) if meshes.sizes.tp > 1 else set()
        self.root = root = FsdpRoot(view)
        _fully_shard(root, model.blocks, experts, meshes, options, self.arithmetic)
        if not model.filled:
            _allocate(root, "cpu" if options.offload else self.arithmetic.device, buffers=meshes.fsdp.device_type)
            fill(run, view.model, model.source, _keep)
        _check(root, meshes)
        root.gather_each_once()
        root.reshard_all()  # FSDP has seen all weights that are ever trained by now
        return view

    def wrap(self, run: Run) -> nn.Module:
        """Return the root that FSDP sharded."""
        return self.root

    def make_optimizer(self, run: Run) -> torch.optim.Optimizer:
        """Return the optimizer over the shards of this process."""
        groups = self.parameter_groups(run)
        add_placements(
            groups, self.model, region_of=lambda parameter: local_slice(parameter)[1], processes=self.meshes.parts
        )
        self.parts = []
        for group in groups:
            own = [
                TrainedShard(name, each, nn.Parameter(local_slice(each)[0].detach()))
                for name, each in zip(group["names"], group["params"], strict=True)
            ]
            self.parts += own
            group["params"] = [each.local for each in own]
        self._locals = {id(part.parameter): part.local for part in self.parts}
        device = "cpu" if run.options(FsdpConfig).offload else self.arithmetic.device
        return build_optimizer(groups, run.config.optim, run.config.learning_rate, device)

    @contextlib.contextmanager
    def around(self, last: bool) -> Iterator[None]:
        """Add gradients up and shard them with the last micro-batch, or with each."""
        self.root.set_requires_gradient_sync(last or self.reduces_each)  # type: ignore[operator]  # an FSDPModule
        yield

    def passes(self, run: Run, batch: Batch) -> int:
        """Return the most micro-batches of any process: each pass gathers weights from all."""
        return batch.most_micro_batches(run.topology.data_size)

    def passes_without_image(self, run: Run) -> bool:
        """Gradients of the encoder are added up across all processes, also of those without an image."""
        return True

    def score(self, run: Run, batch: Batch, objective: Objective) -> ForwardResult:
        """Compute views and sums with gathered weights, and shard them again."""
        all_reduce, passes = self.all_reduce, self.passes(run, batch)
        try:
            return score(self.root, self.model, batch, objective, self.arithmetic, all_reduce=all_reduce, passes=passes)
        finally:
            self.root.reshard_all()

    def reduce_gradients(self, run: Run) -> None:
        """Give the optimizer's tensors the gradients that FSDP has reduced and sharded."""
        for part in self.parts:
            gradient = part.parameter.grad
            part.local.grad = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            if part.local.grad is not None and part.name in self.partial:
                dist.all_reduce(part.local.grad, group=self.meshes.tp.get_group())

    def unscale(self) -> None:
        """Undo the scale of the loss, and tell all processes about an overflow in one process's shard."""
        super().unscale()
        scaler = self.arithmetic.scaler
        if scaler.is_enabled():
            for flag in scaler._per_optimizer_states[id(self.optimizer)]["found_inf_per_device"].values():
                dist.all_reduce(flag, op=dist.ReduceOp.MAX)

    def clip(self, run: Run) -> float:
        """Clip the gradient by its norm over all shards."""
        norm = gradients.norm(self.parts, self.meshes, self.arithmetic.device)
        if run.config.optim.max_grad_norm:
            gradients.clip(self.parts, norm, run.config.optim.max_grad_norm)
        return norm

    def drop_gradients(self) -> None:
        """Drop the gradients of parameters and of their shards."""
        for part in self.parts:
            part.parameter.grad = part.local.grad = None

    def all_reduce(self, table: torch.Tensor) -> None:
        """Add a tensor up over the processes that train on other samples."""
        dist.all_reduce(table, group=self.meshes.slices)

    def local(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the shard by which the optimizer knows a parameter."""
        return self._locals.get(id(parameter))

    def slices(self, piece: Piece, parameter: torch.Tensor, held: torch.Tensor | None = None) -> TensorSlices:
        """Return the part of one tensor on disk that lies in what this process holds of a parameter."""
        own, region = local_slice(parameter)
        held = own if held is None else held
        slices = region_slices(piece.shape, piece.start, parameter.shape, region, held)
        return TensorSlices(piece.shape, slices, dtype=held.dtype)

    def whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """Gather a parameter from all processes."""
        if not isinstance(parameter, DTensor):
            return parameter.detach()
        # Offloaded shards are gathered where the process group can reach them.
        gathered: torch.Tensor = parameter.detach().to(self.arithmetic.device).full_tensor()  # type: ignore[attr-defined]
        return gathered

    def part(self, piece: Piece, parameter: torch.Tensor) -> torch.Tensor:
        """Gather one expert: a layer's experts may be more than a device has room for."""
        if not isinstance(parameter, DTensor):
            return super().part(piece, parameter)
        gathered = torch.zeros(piece.shape, device=self.arithmetic.device)
        adds = gradients.is_sharded(parameter) or self.meshes.tp.get_local_rank() == 0
        for offset, held in self.slices(piece, parameter).slices.items() if adds else ():
            region = tuple(slice(start, start + size) for start, size in zip(offset, held.shape, strict=True))
            gathered[region] = held.to(gathered)
        # Each value is zero on all processes but one: as integers they are added up bit by bit.
        dist.all_reduce(gathered.view(torch.int32), group=self.meshes.parts)
        return gathered


def local_slice(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[slice, ...]]:
    """Return this process's shard of a tensor, and its location.

    Shards are rectangles. A plain tensor is one whole shard.
    """
    if not isinstance(tensor, DTensor):
        return tensor, tuple(slice(0, size) for size in tensor.shape)
    local: torch.Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]  # it stays a DTensor
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    # A process without a part has an offset at the end, or beyond it.
    starts = [min(start, size) for start, size in zip(offset, tensor.shape, strict=True)]
    return local, tuple(slice(start, start + size) for start, size in zip(starts, local.shape, strict=True))


def _keep(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy this process's part of `whole` into its tensor."""
    local, region = local_slice(tensor)
    local.copy_(whole[region])


@torch.no_grad()
def _check(root: FsdpRoot, meshes: Meshes) -> None:
    """Let the view check itself, and refuse types whose code cannot be computed in shards."""
    kind = type(base_model(root.view.model)).__name__
    try:
        root(None)
    except ValueError as error:  # FSDP finds weights that blocks share, of which it gathers and frees each block's
        raise UnsupportedLayout(
            f"{kind} cannot be sharded block by block: {error}", hint="Type --backend deepspeed"
        ) from error
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError | dist.DistError):
            raise
        if meshes.sizes.tp == 1:
            if "DTensor" not in str(error):
                raise
            raise UnsupportedLayout(
                f"{kind} cannot be sharded block by block: it calls `forward` of blocks, which gathers no weights.",
                hint="Type --backend deepspeed",
            ) from error
        raise UnsupportedLayout(  # code that counts its own heads
            f"{kind} cannot be computed with sharded matrices: {str(error).splitlines()[0]}.",
            hint="Type --parallel.tp 1",
        ) from error


def _fully_shard(
    root: FsdpRoot,
    blocks: list[nn.Module],
    experts: list[nn.Module],
    meshes: Meshes,
    options: FsdpConfig,
    arithmetic: Arithmetic,
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
    for each in experts:  # of which fewer processes have the same ones
        fully_shard(each, reshard_after_forward=options.reshard_after_forward, **{**settings, "mesh": meshes.experts})
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
    units = [[each for each in block.modules() if isinstance(each, FSDPModule)] for block in blocks]
    # Between experts and the next block, the host waits to hear how many tokens come: nothing is prefetched by itself.
    for index, (block, *_) in enumerate(units if options.prefetch > 1 or (experts and options.prefetch) else ()):
        following = units[index + 1 : index + 1 + options.prefetch]
        before = units[max(0, index - options.prefetch) : index][::-1]
        block.set_modules_to_forward_prefetch([each for unit in following for each in unit])
        block.set_modules_to_backward_prefetch([each for unit in before for each in unit])


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
