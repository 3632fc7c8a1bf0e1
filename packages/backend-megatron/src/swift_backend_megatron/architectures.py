"""Which architectures Megatron trains, what of their configurations it cannot do, and what mcore-bridge does not read.

What is refused here by name is known before anything is built. What no list knows is found by `self_check`. This module
does not import torch: `swift plan` asks it.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from swift.contracts import RequestedRun
from swift.errors import UnsupportedLayout
from swift.models.positions import rope_by_length

TRAINED = (
    *("cwm", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "glm4", "glm4_moe", "glm4_moe_lite", "hy_v3", "llama"),
    *("minimax_m2", "mistral", "olmoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "solar_open"),
)
"""Text models of transformers that are trained here; a test compares each with transformers."""
WITH_ENCODERS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Architectures whose vision encoders are run here."""
LIKE_KNOWN = ("cwm", "mistral", "seed_oss", "solar_open")
"""Architectures that the bridge's tables leave out though their layers and names are those of others in them."""
_WITH_ENCODER = "mcore-bridge converts it only with a vision encoder that this backend does not run"
_SPARSE = "its sparse attention needs megatron-core 0.17, and this backend runs on 0.16"
REFUSED = {
    "deepseek_v32": _SPARSE,
    "deepseek_v4": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text", "llama4_text", "qwen4_exp_text"), _WITH_ENCODER),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), _WITH_ENCODER),
    "nemotron_h": "its Mamba layers need a GPU and mamba-ssm, with which no test here has trained them",
    "ernie4_5_moe": "its router corrects softmax scores, and Megatron-Core corrects sigmoid scores only",
}
"""Architectures that mcore-bridge names and that do not train with this Megatron-Core, and why."""
ON_GPU = {
    "gpt_oss": ("its attention sinks need Transformer Engine on a GPU", "transformer_engine"),
    "qwen3_next": ("its linear attention needs a GPU and flash-linear-attention", "fla"),
}
"""Architectures that need what a machine may not have: why, and the module. No test here has trained them."""
HINT = "Type --backend fsdp (or deepspeed), which train whatever transformers can load."

_REASONS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NotImplementedError, TypeError),
    ValueError,
)
_LAYER = re.compile(r"\blayers\.(\d+)\.(.+)")


def check_architecture(run: RequestedRun, model_config: Any) -> None:
    """Refuse an architecture of transformers that Megatron does not train; the bridge decides about other code."""
    kind = model_config.model_type
    if kind in REFUSED:
        raise UnsupportedLayout(f"Megatron does not train {kind}: {REFUSED[kind]}.", hint=HINT)
    if kind in ON_GPU and not run.planned_only:
        from swift_backend_megatron import cpu

        reason, module = ON_GPU[kind]
        if cpu.needed() or importlib.util.find_spec(module) is None:
            raise UnsupportedLayout(f"Megatron does not train {kind} on this machine: {reason}.", hint=HINT)
    if rope := rope_by_length(run.config.data.max_length, model_config):
        raise UnsupportedLayout(
            f"Megatron does not compute {kind} with samples of {run.config.data.max_length:,} tokens: its rotary "
            f"positions ({rope}) depend on the length of each sample.",
            hint=f"{HINT[:-1]}, or lower --max_length.",
        )
    # Of a config.json that nothing has read yet, only `auto_map` says whether the model brings code of its own.
    native = type(model_config).__module__.startswith("transformers.") or not hasattr(model_config, "auto_map")
    if native and kind not in (*TRAINED, *WITH_ENCODERS, *ON_GPU):
        raise not_known(kind, encodes_images=getattr(model_config, "vision_config", None) is not None)


def not_known(kind: str, *, encodes_images: bool = False) -> UnsupportedLayout:
    """Return the error about an architecture that Megatron does not train."""
    if encodes_images:
        return UnsupportedLayout(
            f"Megatron does not run the vision encoder of {kind}, only those of {', '.join(WITH_ENCODERS)}.",
            hint=HINT,
        )
    names = sorted({*TRAINED, *WITH_ENCODERS})
    return UnsupportedLayout(
        f"Megatron does not train {kind}: mcore-bridge does not convert this architecture. It trains: "
        f"{', '.join(names)}.",
        hint=HINT,
    )


def check_settings(text: Any, settings: Mapping[str, Any]) -> None:
    """Refuse what the configuration of a model has and Megatron's, `settings`, cannot express."""
    chosen = settings.get("moe_router_topk") or 0
    if (
        settings.get("moe_router_score_function") == "sigmoid"
        and chosen > 1
        and not getattr(text, "norm_topk_prob", True)
    ):
        _refuse(text, "norm_topk_prob false", "Megatron-Core always divides sigmoid scores of experts by their sum")
    groups, kept = settings.get("moe_router_num_groups") or 0, settings.get("moe_router_group_topk") or 0
    best = 1 if text.model_type == "deepseek_v2" else 2
    if groups > kept > 0 and chosen // kept != best:
        _refuse(
            text,
            f"n_group {groups}, topk_group {kept}, num_experts_per_tok {chosen}",
            f"transformers ranks groups of experts by the sum of their best {best}, and Megatron-Core by that of their "
            f"best {chosen // kept} (num_experts_per_tok / topk_group)",
        )
    if getattr(text, "clip_qkv", None) is not None:
        _refuse(text, f"clip_qkv {text.clip_qkv}", "Megatron-Core does not clip queries, keys and values")
    if getattr(text, "mlp_bias", False) and not settings.get("num_moe_experts"):
        _refuse(text, "mlp_bias true", "mcore-bridge does not support MLP biases")


def _refuse(text: Any, what: str, why: str) -> None:
    raise UnsupportedLayout(f"Megatron does not compute {text.model_type} with {what}: {why}.", hint=HINT)


def settings_of_files(text: Any, names: list[str], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that the bridge, which has `found`, assumes or leaves out, as the model's own files have them.

    Configurations differ in their keys for the same thing, and names of weights do not.
    """
    settings: dict[str, Any] = {}
    if "add_qkv_bias" not in found:
        settings["add_qkv_bias"] = any(name.endswith(("q_proj.bias", "q_b_proj.bias")) for name in names)
    if "qk_layernorm" not in found:
        settings["qk_layernorm"] = any(name.endswith(".q_norm.weight") for name in names)
    return settings | _of_experts(text, names, found) | _of_windows(text, found) | _of_activation(text, found)


def _of_experts(text: Any, names: list[str], found: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if any(name.endswith(("e_score_correction_bias", "mlp.expert_bias")) for name in names):
        settings |= {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    if text.model_type == "deepseek_v2":
        # transformers divides by no sum, whatever norm_topk_prob says, and has groups where topk_method names them.
        settings["moe_router_pre_softmax"] = True
        if text.topk_method == "greedy":
            settings |= {"moe_router_num_groups": None, "moe_router_group_topk": None}
    if not found.get("num_moe_experts"):
        return settings
    layers = (_LAYER.search(name) for name in names)
    routed = {int(layer[1]) for layer in layers if layer and ".experts." in layer[2]}
    kinds = [int(index in routed) for index in range(text.num_hidden_layers)]
    if 0 in kinds:
        settings |= {"moe_layer_freq": str(kinds).replace(" ", ""), "ffn_hidden_size": text.intermediate_size}
    return settings


def _of_windows(text: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    width = getattr(text, "sliding_window", None)
    if not width or "window_size" in found or not getattr(text, "use_sliding_window", True):
        return {}
    types = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
    within = [int(kind == "sliding_attention") for kind in types]
    if not any(within):
        return {}
    return {"window_size": f"{width - 1},0", "window_attn_skip_freq": str(within).replace(" ", "")}


def _of_activation(text: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function of gated MLPs, where the bridge would take SiLU though the model has another."""
    name = getattr(text, "hidden_act", None)
    if name is None or "swiglu" in found:
        return {}
    from transformers.activations import ACT2FN

    return {"swiglu": False, "gated_linear_unit": True, "activation_func": ACT2FN[name]}


@contextmanager
def as_refusal(kind: str) -> Iterator[None]:
    """Refuse an architecture by what Megatron or the bridge raises of sizes and settings that they do not have."""
    try:
        yield
    except _REASONS as error:
        raise UnsupportedLayout(
            f"Megatron cannot build {kind} under this plan: {str(error).rstrip('.') or type(error).__name__}.",
            hint="Choose another parallel plan, or type --backend fsdp.",
        ) from error
