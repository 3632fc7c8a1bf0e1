"""Tensor parallel by DeepSpeed's AutoTP: which matrices it shards, and which shard of each this process holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from swift.contracts import Need
from swift.errors import UnsupportedLayout
from swift.toolkit import COLUMNS, ViewModule, base_model, tensor_parallel_spec
from swift_backend_deepspeed.model import EngineView

OWN_LAYOUT = ("partition_config", "preset_model")
"""Keys of DeepSpeed's `tensor_parallel` with which users choose the sharding themselves."""


@dataclass(frozen=True)
class TensorShard:
    """The shard of a matrix (or of its bias) that this process holds."""

    dim: int
    start: int
    size: int
    shape: tuple[int, ...]
    """Shape of the full tensor."""
    group: dist.ProcessGroup
    """Processes that hold the shards, in their order."""

    def slice_of(self, full: torch.Tensor) -> torch.Tensor:
        """Return this process's shard of the full tensor."""
        return full.narrow(self.dim, self.start, self.size).contiguous()

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        """Return the full tensor, gathered from all processes."""
        shard = shard.contiguous()
        shards = [torch.empty_like(shard) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(shards, shard, group=self.group)
        return torch.cat(shards, dim=self.dim)


def partition_config(model: nn.Module, section: dict[str, Any]) -> dict[str, Any]:
    """Return AutoTP's configuration.

    The user's JSON, or else the model's own plan, with embedding and head replicated.
    """
    if any(section.get(key) for key in OWN_LAYOUT):
        return {}
    plan = tensor_parallel_spec(model, ways=section["autotp_size"])
    if plan.parameters or not plan.cut:  # experts and what is whole outside may stay whole
        what = next(iter(plan.parameters), "its matrices")
        raise UnsupportedLayout(
            f"AutoTP cannot shard {what} as {type(base_model(model)).__name__} needs it.",
            hint="Type --backend fsdp, or --parallel.tp 1",
        )
    specs: dict[tuple[str, ...], None] = {}
    for name, how in plan.cut.items():
        specs[_pattern(f"{name}.weight"), "column" if how == COLUMNS else "row"] = None
    for name in plan.partial:
        if base_model(model).get_parameter(name).requires_grad:
            specs[_pattern(name), "partial"] = None
    layers = [
        {"patterns": [pattern], "partition_type": "skip", "grad_allreduce": True}
        if kind == "partial"
        else {"patterns": [pattern], "partition_type": kind}
        for pattern, kind in specs
    ]
    return {"partition_config": {"use_default_specs": False, "layer_specs": layers}}


@contextmanager
def adapters_opened(model: nn.Module) -> Iterator[None]:
    """Let AutoTP find the linear layers inside of adapters.

    It does not look into what has a matrix for a weight, and PEFT's layers pass off that of the layer inside as theirs:
    nothing under an adapter would be cut.
    """
    adapters = {type(module) for module in model.modules() if hasattr(module, "base_layer")}
    classes = {base for each in adapters for base in each.__mro__ if isinstance(vars(base).get("weight"), property)}
    shown = {cls: vars(cls)["weight"] for cls in classes}
    for cls in classes:
        del cls.weight  # type: ignore[attr-defined]  # which they were chosen for
    try:
        yield
    finally:
        for cls, weight in shown.items():
            cls.weight = weight  # type: ignore[attr-defined]


def tensor_group() -> dist.ProcessGroup:
    """Return the processes that share each matrix."""
    from deepspeed.utils import groups

    group: dist.ProcessGroup = groups.get_tensor_model_parallel_group()
    return group


def record_full_shapes(model: nn.Module) -> None:
    """Record the full shape of every parameter that AutoTP has sharded, for their names on disk."""
    for parameter in model.parameters():
        tensor_shard = tensor_shard_of(parameter)
        if tensor_shard is not None:
            parameter.whole_shape = tensor_shard.shape  # type: ignore[attr-defined]  # what `swift.toolkit.whole_shape` reads


def tensor_shard_of(parameter: torch.Tensor) -> TensorShard | None:
    """Return the shard that AutoTP recorded when it sharded the parameter; None where it is replicated."""
    recorded = getattr(parameter, "ds_autotp_universal_checkpoint_meta", None)
    if recorded is None or recorded["replicated"] or recorded["partition_sizes"] is None:
        return None
    group = tensor_group()
    sizes, rank = recorded["partition_sizes"], dist.get_rank(group)
    if len(set(sizes)) > 1 or recorded["sub_param_sizes"] is not None or recorded["sub_param_shape"] is not None:
        raise UnsupportedLayout(
            f"AutoTP would split a matrix of shape {tuple(recorded['original_shape'])} into parts {tuple(sizes)} that "
            "are not equal runs of rows or columns.",
            hint="Choose another parallel.tp, or 1.",
        )
    return TensorShard(
        recorded["partition_dim"], sum(sizes[:rank]), sizes[rank], tuple(recorded["original_shape"]), group
    )


@torch.no_grad()
def probe(view: ViewModule | EngineView, batch: Any, need: Need) -> torch.Tensor:
    """Return one view of a few tokens."""
    was_training = view.training
    view.eval()
    values: torch.Tensor = getattr(view(batch, {need}), need.value)
    view.train(was_training)
    return values


def check_same(name: str, before: torch.Tensor, after: torch.Tensor, *, exact: bool) -> None:
    """Refuse a model whose outputs change when AutoTP shards it: it was split in the wrong dimensions."""
    tolerance = 1e-4 if exact else 0.15
    if not bool(((before - after).abs() <= tolerance * (1 + before.abs())).all()):
        raise UnsupportedLayout(f"{name} gives other numbers when AutoTP shards it.", hint="Type --parallel.tp 1")


def _pattern(name: str) -> str:
    """Return a pattern that matches this parameter in every block, however the model is wrapped."""
    return r".*\." + re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", re.escape(name)) + "$"
