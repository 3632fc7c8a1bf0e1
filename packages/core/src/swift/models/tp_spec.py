"""Tensor parallel as a model's own plan wants it: which matrices are cut, and along what. For use by backends.

Embedding and head stay whole: objectives look at tokens one by one, and backends may shard them in other ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from swift.errors import UnsupportedLayout
from swift.models.names import base_model
from swift.models.sizes import check_width

COLUMNS, ROWS = "colwise", "rowwise"
"""Column parallel (outputs are sharded) and row parallel (inputs are)."""
_PARTIAL = "replicated_with_grad_allreduce"
_KEPT_WHOLE = ("embedding_rowwise", "colwise_gather_output")


@dataclass(frozen=True)
class TensorParallelSpec:
    """Names are those in the transformers model, adapters included."""

    cut: Mapping[str, str]
    """Linear module → `COLUMNS` or `ROWS`."""
    partial: frozenset[str]
    """Parameters that every process has whole and uses on its own heads: their gradients are parts of a sum."""


def tensor_parallel_spec(model: nn.Module, *, ways: int = 1) -> TensorParallelSpec:
    """Return the plan of a transformers or PEFT model; an adapter is sharded on the same side as its linear module.

    Raises `UnsupportedLayout` for a matrix that cannot be cut into so many equal parts.
    """
    base = base_model(model)
    if any(hasattr(module, "base_layer") and hasattr(module, "parameter_name") for module in base.modules()):
        raise UnsupportedLayout(
            "Adapters on experts are not offered with tensor parallelism on this backend.",
            hint="Type --parallel.tp 1, or --backend megatron.",
        )
    plan = _plan_of(base)
    cut: dict[str, str] = {}
    partial: set[str] = set()
    for name, module in base.named_modules():
        how = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if how == _PARTIAL:
            partial |= {f"{name}.{parameter}" for parameter, _ in module.named_parameters()}
        elif how in (COLUMNS, ROWS) and isinstance(linear := getattr(module, "base_layer", module), nn.Linear):
            check_width(name, linear.out_features if how == COLUMNS else linear.in_features, ways)
            cut |= dict.fromkeys(_linear_modules(name, module, how), how)
        elif how is not None and how not in _KEPT_WHOLE and next(module.parameters(), None) is not None:
            raise UnsupportedLayout(
                f"{type(base).__name__} shards {name} as {how!r}, which this backend does not support.",
                hint="Type --parallel.tp 1",
            )
    if not cut:
        raise UnsupportedLayout(
            f"{type(base).__name__} does not support tensor parallelism.", hint="Type --parallel.tp 1"
        )
    return TensorParallelSpec(cut, frozenset(partial))


def _plan_of(base: Any) -> dict[str, str]:
    """Pattern of module names → how it is cut."""
    own = getattr(base.config.get_text_config(), "base_model_tp_plan", None) or {}
    decoder = base.get_decoder()
    path = next(name for name, module in base.named_modules() if module is decoder)
    prefix = f"{path}." if path else ""  # a model without any head
    return {f"{prefix}{pattern}": how for pattern, how in own.items()}


def _linear_modules(name: str, module: nn.Module, how: str) -> Iterator[str]:
    if not hasattr(module, "base_layer"):
        yield name
        return
    yield f"{name}.base_layer"
    side = "lora_B" if how == COLUMNS else "lora_A"
    yield from (f"{name}.{side}.{adapter}" for adapter in getattr(module, side, ()))
