"""Tensor parallel: matrices cut as the model's own plan says, with DTensor. Embedding and head stay whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from swift.errors import UnsupportedPlan
from swift.toolkit import ADAPTER, base_model

_PARTIAL = "replicated_with_grad_allreduce"
"""Modules that every process has whole and uses on its own heads: their gradients are parts of a sum."""
_KEPT_WHOLE = ("embedding_rowwise", "colwise_gather_output")
"""Of embedding and head, which objectives look at token by token; FSDP shards them all the same."""
_STYLES: Mapping[str, type[ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


def cut_tensors(model: nn.Module, mesh: DeviceMesh) -> set[str]:
    """Cut the decoder's matrices; answers the parameters whose gradients must be added up over `mesh`."""
    base: Any = base_model(model)
    plan = _plan_of(base)
    styles: dict[str, ParallelStyle] = {}
    partial: set[str] = set()
    for name, module in base.named_modules():
        how = _match(plan, name)
        if how == _PARTIAL:
            partial |= {f"{name}.{parameter}" for parameter, _ in module.named_parameters()}
        elif how is not None and how in _STYLES and _is_linear(module):
            styles |= _styles_of(name, module, how)
        elif how is not None and how not in _KEPT_WHOLE and next(module.parameters(), None) is not None:
            raise UnsupportedPlan(
                f"{type(base).__name__} wants {name} cut as {how!r}, which this backend cannot do.",
                hint="Type --parallel.tp 1",
            )
    if not styles:
        raise UnsupportedPlan(f"{type(base).__name__} has no plan for tensor parallel.", hint="Type --parallel.tp 1")
    parallelize_module(base, mesh, styles)
    return {name for name, _ in model.named_parameters() if any(name.endswith(each) for each in partial)}


def _plan_of(base: Any) -> dict[str, str]:
    """Pattern of module names → how it is cut."""
    prefix = base.base_model_prefix
    own = getattr(base.config.get_text_config(), "base_model_tp_plan", None) or {}
    return {f"{prefix}.{pattern}": how for pattern, how in own.items()}


def _match(plan: Mapping[str, str], name: str) -> str | None:
    return plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))


def _is_linear(module: nn.Module) -> bool:
    return isinstance(getattr(module, "base_layer", module), nn.Linear)


def _styles_of(name: str, module: nn.Module, how: str) -> dict[str, ParallelStyle]:
    """Of a linear module; where it carries an adapter, that is cut on the same side."""
    style = _STYLES[how]
    if not hasattr(module, "base_layer"):
        return {name: style()}
    adapter = "lora_B" if how == "colwise" else "lora_A"
    return {f"{name}.base_layer": style(), f"{name}.{adapter}.{ADAPTER}": style()}
