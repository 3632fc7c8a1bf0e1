"""Tensor parallel: matrices sharded as the model's own plan says, with DTensor. FSDP shards embedding and head."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from swift.contracts import Run
from swift.toolkit import COLUMNS, ROWS, base_model, cut_modules, tensor_parallel_spec

_STYLES: Mapping[str, type[ParallelStyle]] = {COLUMNS: ColwiseParallel, ROWS: RowwiseParallel}


def shard_tensors(run: Run, model: nn.Module, mesh: DeviceMesh) -> set[str]:
    """Shard the decoder's matrices; returns the parameters whose gradients must be summed over `mesh`."""
    plan = tensor_parallel_spec(model, ways=mesh.size())
    parallelize_module(base_model(model), mesh, {name: _STYLES[how]() for name, how in plan.cut.items()})
    cut_modules(run, model, plan, mesh.get_group())
    return {name for name, _ in model.named_parameters() if any(name.endswith(each) for each in plan.partial)}
