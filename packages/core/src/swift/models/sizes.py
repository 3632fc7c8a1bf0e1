"""Sizes of a model that a parallel plan must divide, told by its configuration before anything is built of it.

This module does not import torch: `swift config show` asks with the content of config.json.
"""

from __future__ import annotations

from typing import Any

from swift.errors import UnsupportedPlan


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

    Experts that tokens are dealt out to are the backend's own business.
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
                check_width(name, each, tp)


def check_width(name: str, width: int, ways: int) -> None:
    """Refuse a number of processes that does not divide one width."""
    if width % ways:
        raise UnsupportedPlan(
            f"A width of {width} ({name}) cannot be divided evenly over parallel.tp {ways} processes.",
            hint=f"Choose a divisor of {width}, or --parallel.tp 1.",
        )


def experts_of(text: Any) -> int:
    """Return how many experts each routed layer of a model has; 0 for a dense one."""
    return max(getattr(text, name, None) or 0 for name in ("num_experts", "n_routed_experts", "num_local_experts"))


def _has_dense_layers(text: Any) -> bool:
    """Return whether some layers of a model with experts have an MLP instead."""
    step = getattr(text, "decoder_sparse_step", None)
    first = getattr(text, "first_k_dense_replace", None)
    return bool((step or 1) > 1 or getattr(text, "mlp_only_layers", None) or first)
