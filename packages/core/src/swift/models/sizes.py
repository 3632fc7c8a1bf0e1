"""Sizes of a model that a parallel plan must divide, told by its configuration before anything is built of it.

This module does not import torch: `swift config show` asks with the content of config.json.
"""

from __future__ import annotations

from typing import Any

from swift.errors import UnsupportedLayout
from swift.models.config_file import StoredConfig


def check_heads(model_config: Any, tp: int) -> None:
    """Refuse a number of processes that does not divide the attention heads."""
    if tp == 1:
        return
    text = model_config.get_text_config()
    heads = values_of(text, "num_attention_heads")
    groups = values_of(text, "num_key_value_heads") or heads
    if not heads and isinstance(text, StoredConfig):
        return  # transformers knows a default for a key that is left out
    if not heads:
        raise UnsupportedLayout(
            f"{text.model_type} has no attention heads, so parallel.tp {tp} cannot shard it.",
            hint="Type --parallel.tp 1",
        )
    if any(count % tp for count in (*heads, *groups)):
        raise UnsupportedLayout(
            f"{_listed(heads)} attention heads with {_listed(groups)} key-value heads are not divisible by "
            f"parallel.tp {tp}.",
            hint=f"Choose a divisor of {_listed(groups)}.",
        )


def values_of(text: Any, name: str) -> list[int]:
    """Return the values of a setting that layers may differ in, each once; none where the setting is missing."""
    layers = [text] if not getattr(text, "is_heterogeneous", False) else list(text.per_layer_config)
    found = [getattr(layer, name, None) for layer in layers]
    each = [value for values in found for value in (values if isinstance(values, list | tuple) else [values])]
    return sorted({value for value in each if value is not None})


def config_of_layer(text: Any, layer: int) -> Any:
    """Return the settings of one layer: those of the whole model, but for architectures whose layers differ."""
    return text.per_layer_config[layer] if getattr(text, "is_heterogeneous", False) else text


def _listed(counts: list[int]) -> str:
    return " and ".join(map(str, counts))


def check_widths(model_config: Any, tp: int) -> None:
    """Refuse a number of processes that does not divide the width of an MLP, or of experts that every token takes.

    Experts that tokens are dealt out to are the backend's own business.
    """
    text = model_config.get_text_config()
    routed = experts_of(text)
    own_width = getattr(text, "moe_intermediate_size", None)
    widths: dict[str, list[int]] = {}
    if not routed or (own_width is not None and _has_dense_layers(text)):
        widths["intermediate_size"] = values_of(text, "intermediate_size")
    widths["shared_expert_intermediate_size"] = values_of(text, "shared_expert_intermediate_size")
    shared = getattr(text, "n_shared_experts", None)
    if shared and own_width:
        widths["n_shared_experts × moe_intermediate_size"] = [shared * own_width]
    for name, each in widths.items():
        for width in each:
            check_width(name, width, tp)


def check_width(name: str, width: int, ways: int) -> None:
    """Refuse a number of processes that does not divide one width."""
    if width % ways:
        raise UnsupportedLayout(
            f"{name} {width} is not divisible by parallel.tp {ways}.",
            hint=f"Choose a divisor of {width}, or --parallel.tp 1.",
        )


def check_experts(model_config: Any, ep: int, etp: int = 1) -> None:
    """Refuse to distribute the experts of a model that has none, or so many that they are not divisible."""
    text = model_config.get_text_config()
    experts = experts_of(text)
    for name, size in (("ep", ep), ("etp", etp)):
        if size > 1 and not experts:
            raise UnsupportedLayout(
                f"parallel.{name} {size} distributes experts, and {text.model_type} has none.",
                hint=f"Type --parallel.{name} 1",
            )
    if experts % ep:
        raise UnsupportedLayout(
            f"{experts} experts are not divisible by ep {ep}.", hint=f"Choose a divisor of {experts}."
        )


def experts_of(text: Any) -> int:
    """Return how many experts each routed layer of a model has; 0 for a dense one."""
    names = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    return max(getattr(text, name, None) or 0 for name in names)


def _has_dense_layers(text: Any) -> bool:
    """Return whether some layers of a model with experts have an MLP instead."""
    step = getattr(text, "decoder_sparse_step", None)
    first = getattr(text, "first_k_dense_replace", None)
    return bool((step or 1) > 1 or getattr(text, "mlp_only_layers", None) or first)
