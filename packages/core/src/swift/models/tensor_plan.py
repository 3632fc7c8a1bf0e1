"""Tensor parallel as a model's own plan wants it: which matrices are cut, and along what. For use by backends.

Embedding and head stay whole: objectives look at tokens one by one, and backends may shard them in other ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from swift.errors import UnsupportedPlan
from swift.models.names import ADAPTER, base_model

COLUMNS, ROWS = "colwise", "rowwise"
"""Column parallel (outputs are sharded) and row parallel (inputs are)."""
_PARTIAL = "replicated_with_grad_allreduce"
_KEPT_WHOLE = ("embedding_rowwise", "colwise_gather_output")


@dataclass(frozen=True)
class TensorPlan:
    """Names are those in the transformers model, adapters included."""

    cut: Mapping[str, str]
    """Linear module → `COLUMNS` or `ROWS`."""
    partial: frozenset[str]
    """Parameters that every process has whole and uses on its own heads: their gradients are parts of a sum."""


def tensor_plan(model: nn.Module, *, ways: int = 1) -> TensorPlan:
    """Return the plan of a transformers or PEFT model; an adapter is sharded on the same side as its linear module.

    Raises `UnsupportedPlan` for a matrix that cannot be cut into so many equal parts.
    """
    base: Any = base_model(model)
    plan = _plan_of(base)
    cut: dict[str, str] = {}
    partial: set[str] = set()
    for name, module in base.named_modules():
        how = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if how == _PARTIAL:
            partial |= {f"{name}.{parameter}" for parameter, _ in module.named_parameters()}
        elif how in (COLUMNS, ROWS) and isinstance(linear := getattr(module, "base_layer", module), nn.Linear):
            _check_width(name, linear.out_features if how == COLUMNS else linear.in_features, ways)
            cut |= dict.fromkeys(_linear_modules(name, module, how), how)
        elif how is not None and how not in _KEPT_WHOLE and next(module.parameters(), None) is not None:
            raise UnsupportedPlan(
                f"{type(base).__name__} wants {name} cut as {how!r}, which this backend cannot do.",
                hint="Type --parallel.tp 1",
            )
    if not cut:
        raise UnsupportedPlan(f"{type(base).__name__} has no plan for tensor parallel.", hint="Type --parallel.tp 1")
    return TensorPlan(cut, frozenset(partial))


def check_heads(model_config: Any, tp: int) -> None:
    """Refuse a number of processes that does not divide the attention heads."""
    text = model_config.get_text_config()
    heads = text.num_attention_heads
    groups = getattr(text, "num_key_value_heads", None) or heads
    if heads % tp or groups % tp:
        raise UnsupportedPlan(
            f"{heads} attention heads with {groups} key-value heads are not divisible by parallel.tp {tp}.",
            hint=f"Choose a divisor of {groups}.",
        )


def check_widths(model_config: Any, tp: int) -> None:
    """Refuse a number of processes that does not divide the width of an MLP, or of experts that every token takes.

    Told by the model's configuration, before anything is built of it. Experts that tokens are dealt out to are the
    backend's own business.
    """
    text = model_config.get_text_config()
    routed = experts_of(text)
    own_width = getattr(text, "moe_intermediate_size", None)
    widths: dict[str, Any] = {}
    if not routed or (own_width is not None and _has_dense_layers(text)):
        widths["intermediate_size"] = getattr(text, "intermediate_size", None)
    widths["shared_expert_intermediate_size"] = getattr(text, "shared_expert_intermediate_size", None)
    shared = getattr(text, "n_shared_experts", None)
    if shared and own_width:
        widths["n_shared_experts × moe_intermediate_size"] = shared * own_width
    for name, width in widths.items():
        for each in width if isinstance(width, list | tuple) else [width]:
            if isinstance(each, int):
                _check_width(name, each, tp)


def experts_of(text: Any) -> int:
    """Return how many experts each routed layer of a model has; 0 for a dense one."""
    return max(getattr(text, name, None) or 0 for name in ("num_experts", "n_routed_experts", "num_local_experts"))


def _has_dense_layers(text: Any) -> bool:
    """Return whether some layers of a model with experts have an MLP instead."""
    step = getattr(text, "decoder_sparse_step", None)
    first = getattr(text, "first_k_dense_replace", None)
    return bool((step or 1) > 1 or getattr(text, "mlp_only_layers", None) or first)


def _check_width(name: str, width: int, ways: int) -> None:
    if width % ways:
        raise UnsupportedPlan(
            f"A width of {width} ({name}) cannot be divided evenly over parallel.tp {ways} processes.",
            hint=f"Choose a divisor of {width}, or --parallel.tp 1.",
        )


def _plan_of(base: Any) -> dict[str, str]:
    """Pattern of module names → how it is cut."""
    own = getattr(base.config.get_text_config(), "base_model_tp_plan", None) or {}
    prefix = "" if base.base_model is base else f"{base.base_model_prefix}."  # a model without any head
    return {f"{prefix}{pattern}": how for pattern, how in own.items()}


def _linear_modules(name: str, module: nn.Module, how: str) -> Iterator[str]:
    if not hasattr(module, "base_layer"):
        yield name
        return
    yield f"{name}.base_layer"
    yield f"{name}.{'lora_B' if how == COLUMNS else 'lora_A'}.{ADAPTER}"
