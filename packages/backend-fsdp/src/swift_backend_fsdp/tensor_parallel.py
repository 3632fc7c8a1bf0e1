"""Tensor parallel: matrices sharded with DTensor, as a plan says. FSDP shards embedding and head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from transformers.pytorch_utils import Conv1D

from swift.contracts import Run
from swift.toolkit import (
    COLUMNS,
    ROWS,
    ParameterCut,
    TensorParallelSpec,
    ViewModule,
    added_up,
    base_model,
    copied,
    copy_tails,
    cut_modules,
    tensor_parallel_spec,
)
from swift_backend_fsdp.tensor_parallel_check import checked_plan


class _Rows(RowwiseParallel):
    """Row parallel, with outputs that code may change in place."""

    @staticmethod
    def _prepare_output_fn(  # torch counts its arguments
        output_layouts: Any, use_local_output: bool, mod: nn.Module, outputs: Any, device_mesh: DeviceMesh
    ) -> torch.Tensor:
        prepare: Any = RowwiseParallel._prepare_output_fn
        whole: torch.Tensor = prepare(output_layouts, use_local_output, mod, outputs, device_mesh)
        return whole.clone()


_INSIDE: Mapping[str, ParallelStyle] = {COLUMNS: ColwiseParallel(), ROWS: _Rows()}
_WHOLE_OUTSIDE: Mapping[str, ParallelStyle] = {
    COLUMNS: ColwiseParallel(output_layouts=Replicate()),
    ROWS: _Rows(input_layouts=Replicate()),
}


def shard_tensors(run: Run, view: ViewModule, mesh: DeviceMesh) -> set[str]:
    """Shard the decoder's matrices; returns the parameters whose gradients must be summed over `mesh`."""
    model = view.model
    plan = checked_plan(view, mesh, apply_spec)
    spec = tensor_parallel_spec(model, ways=mesh.size(), plan=plan)
    apply_spec(base_model(model), spec, mesh)
    cut_modules(run, model, spec, mesh.get_group())
    cut, whole = _matrices(base_model(model).get_decoder())
    if whole:
        run.say(f"Tensor parallel: each process has a part of {', '.join(cut)}, and all of {', '.join(whole)}.")
    return {name for name, _ in model.named_parameters() if any(name.endswith(each) for each in spec.partial)}


def apply_spec(base: nn.Module, spec: TensorParallelSpec, mesh: DeviceMesh) -> None:
    """Shard a transformers model, and let its modules compute with their shards."""
    styles = {name: _INSIDE[how] for name, how in spec.cut.items()}
    styles |= {name: _WHOLE_OUTSIDE[how] for name, how in spec.whole_outside.items()}
    for name, style in styles.items():
        if isinstance(module := base.get_submodule(name), Conv1D):
            _transposed(module, style, mesh)
        else:
            parallelize_module(module, mesh, style)
    group = mesh.get_group()
    for name, cuts in {**spec.parameters, **spec.experts}.items():
        module = base.get_submodule(name)
        for parameter, cut in cuts.items():
            _distribute(module, parameter, cut, mesh)
        _LocalForward(module, cuts, group, adds=name in spec.experts)
    for name in spec.identities:
        base.get_submodule(name).register_forward_hook(lambda _module, _given, output: output / mesh.size())
    copy_tails(base, spec, group)


def _matrices(decoder: nn.Module) -> tuple[list[str], list[str]]:
    """Return what matrices in the layers of a decoder are called: those that are sharded, and those that are not."""
    found: tuple[dict[str, None], dict[str, None]] = ({}, {})
    for path, module in decoder.named_modules():
        if hasattr(module, "base_layer") or isinstance(module, nn.Embedding):
            continue
        name = path.removesuffix(".base_layer").rpartition(".")[2]
        for key, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1 and not any(part.startswith("lora_") for part in path.split(".")):
                found[not isinstance(parameter, DTensor)][name if key == "weight" else f"{name}.{key}"] = None
    return [*found[0]], [*found[1]]


def _transposed(module: Conv1D, style: Any, mesh: DeviceMesh) -> None:
    """Apply a style to a module whose weight has inputs for rows."""
    columns = isinstance(style, ColwiseParallel)
    _distribute(module, "weight", ParameterCut(1 if columns else 0), mesh)
    if columns:
        _distribute(module, "bias", ParameterCut(0), mesh)
    wanted = (Replicate() if columns else Shard(-1),)
    distribute_module(
        module,
        mesh,
        input_fn=partial(style._prepare_input_fn, style.input_layouts, wanted),
        output_fn=partial(style._prepare_output_fn, style.output_layouts, True),
    )


def _distribute(module: nn.Module, name: str, cut: ParameterCut, mesh: DeviceMesh) -> None:
    """Shard a parameter. One that packs matrices gets a dimension for them, so that a shard is a rectangle."""
    parameter: Any = getattr(module, name)
    if cut.dim is None:
        return
    data, dim = parameter.detach(), cut.dim
    if cut.packed > 1:
        data, dim = data.unflatten(dim, (cut.packed, -1)), dim + 1
    sharded = distribute_tensor(data, mesh, [Shard(dim)], src_data_rank=None)
    module._parameters[name] = nn.Parameter(sharded, requires_grad=parameter.requires_grad)


class _LocalForward:
    """The forward pass of a module whose own parameters are sharded, as plain tensors of fewer rows or columns."""

    def __init__(
        self, module: nn.Module, cuts: Mapping[str, ParameterCut], group: dist.ProcessGroup, *, adds: bool
    ) -> None:
        self.module, self.cuts, self.group = module, cuts, group
        self._forward = module.forward
        # How many tokens an expert gets is known only when they come.
        module.forward = torch.compiler.disable(self.sum if adds else self.part)  # type: ignore[no-untyped-call]  # torch's

    def part(self, *given: Any, **named: Any) -> Any:
        """Compute with the shards."""
        with self._local_parameters():
            return self._forward(*given, **named)

    def sum(self, *given: Any, **named: Any) -> torch.Tensor:
        """Compute with the shards, and add up what comes of all of them."""
        output = self.part(*map(self._copied, given), **{name: self._copied(each) for name, each in named.items()})
        return added_up(output, self.group)

    def _copied(self, given: Any) -> Any:
        is_float = isinstance(given, torch.Tensor) and given.is_floating_point()
        return copied(given, self.group) if is_float else given

    @contextmanager
    def _local_parameters(self) -> Iterator[None]:
        held = {name: self.module._parameters[name] for name in self.cuts}
        self.module._parameters.update({name: self._local(held[name], cut) for name, cut in self.cuts.items()})
        try:
            yield
        finally:
            self.module._parameters.update(held)

    def _local(self, parameter: Any, cut: ParameterCut) -> Any:
        if cut.dim is None:
            return parameter / dist.get_world_size(self.group)
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        return local.flatten(cut.dim, cut.dim + 1) if cut.packed > 1 else local
