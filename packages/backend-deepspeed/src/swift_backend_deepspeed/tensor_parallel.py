"""Tensor parallel by DeepSpeed's AutoTP: which matrices it is told to cut, and which part of each this process has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from swift.contracts import Need
from swift.errors import UnsupportedPlan
from swift.toolkit import COLUMNS, ViewModule, base_model, tensor_plan

if TYPE_CHECKING:
    from torch import nn

    from swift_backend_deepspeed.model import EngineView


OWN_CUT = ("partition_config", "preset_model")
"""Keys of DeepSpeed's `tensor_parallel` by which users say themselves what is cut."""


@dataclass(frozen=True)
class Region:
    """The part of a matrix (or of its bias) that this process has."""

    dim: int
    start: int
    size: int
    shape: tuple[int, ...]
    """Of the whole."""
    group: dist.ProcessGroup
    """Those that have the other parts, in their order."""

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """This process's part."""
        return whole.narrow(self.dim, self.start, self.size).contiguous()

    def whole(self, part: torch.Tensor) -> torch.Tensor:
        """Parts of all processes put together."""
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, part, group=self.group)
        return torch.cat(parts, dim=self.dim)


def partition_config(model: nn.Module, said: dict[str, Any]) -> dict[str, Any]:
    """Return AutoTP's configuration.

    The user's JSON, or else the model's own plan, with embedding and head replicated.
    """
    if any(said.get(key) for key in OWN_CUT):
        return {}
    plan = tensor_plan(model, ways=said["autotp_size"])
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


def mark_regions(model: nn.Module) -> None:
    """Parameters that AutoTP has cut remember the shape of the whole, for their names on disk."""
    for parameter in model.parameters():
        region = region_of(parameter)
        if region is not None:
            parameter.whole_shape = region.shape  # type: ignore[attr-defined]  # what `swift.toolkit.whole_shape` reads


def region_of(parameter: torch.Tensor) -> Region | None:
    """Return the shard that AutoTP recorded when it sharded the parameter; None where it is replicated."""
    noted = getattr(parameter, "ds_autotp_universal_checkpoint_meta", None)
    if noted is None or noted["replicated"] or noted["partition_sizes"] is None:
        return None
    from deepspeed.utils import groups

    group: Any = groups.get_tensor_model_parallel_group()
    sizes, rank = noted["partition_sizes"], dist.get_rank(group)
    if len(set(sizes)) > 1 or noted["sub_param_sizes"] is not None or noted["sub_param_shape"] is not None:
        raise UnsupportedPlan(
            f"AutoTP would cut a matrix of shape {tuple(noted['original_shape'])} into parts {tuple(sizes)} that are "
            "not equal runs of rows or columns.",
            hint="Choose another parallel.tp, or 1.",
        )
    return Region(noted["partition_dim"], sum(sizes[:rank]), sizes[rank], tuple(noted["original_shape"]), group)


@torch.no_grad()
def probe(view: ViewModule | EngineView, batch: Any) -> torch.Tensor:
    """Log-probabilities of a few tokens."""
    was_training = view.training
    view.eval()
    logps: torch.Tensor = view(batch, {Need.TOKEN_LOGPS}).token_logps
    view.train(was_training)
    return logps


def check_same(name: str, whole: torch.Tensor, cut: torch.Tensor, *, exact: bool) -> None:
    """A model that AutoTP cuts in the wrong places says other things than before."""
    tolerance = 1e-4 if exact else 0.15
    if not bool(((whole - cut).abs() <= tolerance * (1 + whole.abs())).all()):
        raise UnsupportedPlan(f"{name} gives other numbers when AutoTP has cut it.", hint="Type --parallel.tp 1")


def _pattern(name: str) -> str:
    """Return a pattern that matches this parameter in every block, however the model is wrapped."""
    return r".*\." + re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", re.escape(name)) + "$"
