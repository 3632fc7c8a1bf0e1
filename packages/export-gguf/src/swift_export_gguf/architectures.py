"""How llama.cpp stores the model types of transformers: the metadata, and what it changes in weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gguf
import torch

from swift.errors import ExportError


@dataclass(frozen=True)
class Architecture:
    """How llama.cpp stores one model type of transformers.

    - `name`: the architecture in llama.cpp.
    - `interleaved`: whether the two halves of a rotated head lie interleaved in rows of queries and keys.
    - `norm_offset`: what transformers adds to the weights of norms at run time, and llama.cpp stores.
    - `required`: settings of the configuration that llama.cpp has no key for, and the value that it computes with.
    - `window_period`: of so many layers, the last has full attention and the others a sliding window.
    """

    name: str
    interleaved: bool = False
    norm_offset: float = 0.0
    required: Mapping[str, Any] = field(default_factory=dict)
    window_period: int = 0

    def stored(self, name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:
        """Return a weight as llama.cpp stores it under the GGUF name `name`."""
        if name.endswith("norm.weight"):
            return weight + self.norm_offset
        if self.interleaved and (".attn_q." in name or ".attn_k." in name):
            heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
            return weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
        return weight


_SILU = {"hidden_act": "silu"}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "use_bidirectional_attention": False}
ARCHITECTURES = {
    "llama": Architecture("llama", interleaved=True, required=_SILU | {"attention_bias": False, "mlp_bias": False}),
    "qwen2": Architecture("qwen2", required=_SILU | {"use_sliding_window": False}),
    "qwen3": Architecture("qwen3", required=_SILU | {"use_sliding_window": False, "attention_bias": False}),
    "phi3": Architecture("phi3", required=_SILU),
    "gemma2": Architecture("gemma2", norm_offset=1.0, required=_GEMMA, window_period=2),
    "gemma3_text": Architecture(
        "gemma3",
        norm_offset=1.0,
        required=_GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        window_period=6,
    ),
}
"""Model type → how it is stored, for the types whose exports were seen to compute the same."""


def architecture_of(config: Any) -> Architecture:
    """Return how a model is stored; refuse types and settings that llama.cpp would compute in another way."""
    found = ARCHITECTURES.get(config.model_type)
    if found is None:
        raise ExportError(
            f"Models of type {config.model_type} cannot be exported to GGUF. Supported: {', '.join(ARCHITECTURES)}.",
            hint="Export --to hf, then convert the folder with llama.cpp's convert_hf_to_gguf.py.",
        )
    required = dict(found.required)
    if found.window_period:
        required["query_pre_attn_scalar"] = config.head_dim
        kinds = ["sliding_attention"] * (found.window_period - 1) + ["full_attention"]
        required["layer_types"] = [kinds[layer % len(kinds)] for layer in range(config.num_hidden_layers)]
    for name, value in required.items():
        own = getattr(config, name, value)
        if (own or None) != (value or None):
            raise ExportError(f"llama.cpp computes {found.name} models with {name} {value}; this model has {own}.")
    return found


def head_dim(config: Any) -> int:
    """Return the width of an attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def rope_of(config: Any, kind: str = "full_attention") -> Mapping[str, Any]:
    """Return the rotary parameters of one kind of layers."""
    parameters: Mapping[str, Any] = config.rope_parameters
    own: Mapping[str, Any] = parameters.get(kind, parameters)
    return own


def add_metadata(writer: gguf.GGUFWriter, config: Any, architecture: Architecture) -> None:
    """Write the hyperparameters under llama.cpp's keys."""
    rope, width = rope_of(config), head_dim(config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(int(width * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(rope["rope_theta"])
    for name in ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping"):
        value = getattr(config, name, None)
        if value is not None:
            getattr(writer, f"add_{name}")(value)
    _add_rope_scaling(writer, rope)
    if architecture.name == "gemma3":
        sliding = rope_of(config, "sliding_attention")
        if sliding.get("rope_type", "default") != "default":
            raise ExportError("llama.cpp scales no rotary embeddings of layers with a sliding window.")
        writer.add_rope_freq_base_swa(sliding["rope_theta"])


def _add_rope_scaling(writer: gguf.GGUFWriter, rope: Mapping[str, Any]) -> None:
    kind = rope.get("rope_type", "default")
    if kind in ("default", "llama3"):  # llama3 is a tensor
        return
    if kind not in ("linear", "yarn") or any(rope.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim")):
        raise ExportError(
            f"GGUF exports support rope_scaling linear, yarn and llama3 only; this model has {dict(rope)}."
        )
    writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast") or 32.0)
        writer.add_rope_scaling_yarn_beta_slow(rope.get("beta_slow") or 1.0)


def rope_factors(config: Any) -> torch.Tensor | None:
    """Return by what llama3's scaling divides each rotary frequency; None without it."""
    rope, width = rope_of(config), head_dim(config)
    if rope.get("rope_type") != "llama3":
        return None
    wavelengths = 2 * math.pi * rope["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = (rope["original_max_position_embeddings"] / wavelengths - low) / (high - low)
    smooth = smooth.clamp(0, 1)
    factors: torch.Tensor = (1 / ((1 - smooth) / rope["factor"] + smooth)).float()
    return factors
