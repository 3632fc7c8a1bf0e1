"""Tiny models of every type of causal language model in transformers, made by one table of small sizes.

A type keeps its own defaults for everything that is not a size: every kind of layer, router and scaling that its
configuration has by default is in the tiny model too. Limits such as windows and chunks shrink below the length of a
sample, so that a mechanism that depends on them takes part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.dbrx.configuration_dbrx import DbrxAttentionConfig, DbrxFFNConfig

from swift_testing.tokenizer import byte_tokenizer

LAYERS = 4
WINDOW, CHUNK, TOP_K = 12, 16, 16
"""Below the length of most samples, and no divisors of it."""
VOCABULARY, HIDDEN, HEADS, HEAD, INNER, EXPERTS = 272, 64, 4, 16, 96, 4
STD = 0.08
"""Of random matrices: wide enough for a leak between samples to show."""

SIZES: dict[str, Any] = {
    # Vocabulary and positions.
    **dict.fromkeys(("vocab_size", "decoder_vocab_size", "vocab_size_per_layer_input", "n_langs"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "context_length"), 512),
    **dict.fromkeys(("max_target_positions", "max_source_positions", "model_max_length"), 512),
    # Widths.
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size", "word_embed_proj_dim"), HIDDEN),
    **dict.fromkeys(("input_embedding_size", "output_embedding_size", "embedding_dim", "lru_width", "d_embed"), HIDDEN),
    "backbone_hidden_size": HIDDEN,
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "d_inner", "dff"), INNER),
    **dict.fromkeys(("ffn_hidden_size", "dim_ff", "intermediate_size_mlp", "shared_intermediate_size"), INNER),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "dense_intermediate_size"), 32),
    **dict.fromkeys(("hidden_size_per_layer_input", "router_hidden_size", "hc_lowrank", "ple_embed_dim"), 16),
    # Depth.
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks"), LAYERS),
    **dict.fromkeys(("decoder_layers", "encoder_layers", "num_decoder_layers", "num_encoder_layers"), LAYERS),
    "max_window_layers": 2,
    # Heads.
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads"), HEADS),
    **dict.fromkeys(("attention_heads", "swa_num_attention_heads", "num_query_groups"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "dim_head", "d_head", "attention_head_dim", "swa_head_dim", "kv_channels"), HEAD),
    **dict.fromkeys(("query_pre_attn_scalar", "v_head_dim", "rotary_dim"), HEAD),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    "qk_head_dim": 16,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    # Mixtures.
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"), 1),
    "zero_expert_num": 2,
    # Limits.
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention", "sliding_window_size"), WINDOW),
    **dict.fromkeys(("attention_chunk_size", "floor_scale", "chunk_size", "mamba_chunk_size"), CHUNK),
    "index_topk": TOP_K,
    # State spaces, linear attention, convolutions.
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 16),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 16),
    "linear_num_value_heads": 4,
    "index_n_heads": 16,  # few would tie at zero, where the choice of tokens is arbitrary
    "index_head_dim": 16,
}
"""Names of sizes in transformers' configurations → what a tiny model has."""

KINDS = ("layer_types", "layers_block_type", "indexer_types")
"""Settings that name the kind of each layer."""
MLP_KINDS = "mlp_layer_types"
"""The setting that names the kind of each layer's MLP: the first ones are dense in many types."""

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_QSA = {
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": HEAD, "indexer_budget": TOP_K,
    "indexer_compress_ratio": 4, "ngram_vocab_size_base": 101,
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {**_ROPE, "mrope_section": [2, 3, 3]}}
    },
    "dbrx": {
        "attn_config": DbrxAttentionConfig(kv_n_heads=2, clip_qkv=8.0, rope_theta=10000.0),
        "ffn_config": DbrxFFNConfig(hidden_size=HIDDEN, ffn_hidden_size=INNER, moe_num_experts=EXPERTS, moe_top_k=2),
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "dots1": {
        "num_experts_per_tok": 2, "n_routed_experts": EXPERTS, "n_shared_experts": 1, "first_k_dense_replace": 1
    },
    "esm": {"vocab_size": VOCABULARY, "position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 3},
    "esmc": {"num_key_value_heads": HEADS},
    "gemma4_text": {"global_head_dim": 2 * HEAD},
    "gemma3n_text": {"num_kv_shared_layers": 2, "intermediate_size": INNER},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
    "hunyuan_v1_dense": {"head_dim": HEAD},
    "ministral": {"head_dim": HEAD},
    "nemotron": {"head_dim": HEAD, "num_key_value_heads": 2},
    "mamba2": {"num_heads": 8},
    "falcon_h1": {"mamba_d_ssm": 2 * HIDDEN},
    "qwen4_exp": {"text_config": _QSA},
    "qwen4_exp_text": _QSA,
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "hunyuan_v1_moe": {"head_dim": HEAD, "num_experts": EXPERTS, "moe_topk": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "xlstm": {"qk_dim_factor": 1.0, "autocast_kernel_dtype": "float32"},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_head_dim": 2 * HIDDEN // HEADS, "n_mamba_heads": 2},  # each has a loop over tokens
    "zamba2": {"attention_head_dim": 2 * HIDDEN // HEADS},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""What single types need besides."""

NOT_MADE: dict[str, str] = {
    "blt": "its configuration names no number of layers, which transformers' own cache asks for",
    "gemma3n": "its vision encoder needs timm, which is not installed",
    "gemma4_assistant": "a drafter, which reads the states of another model",
    "gemma4_unified_assistant": "a drafter, which reads the states of another model",
    "musicgen": "an audio decoder that is conditioned on a text encoder",
    "musicgen_melody": "an audio decoder that is conditioned on a text encoder",
    "emu3": "transformers saves a configuration that it cannot load again",
    "mllama": "transformers saves a configuration that it cannot load again",
    "reformer": "trains only in rows of one fixed length",
}
"""Types without a tiny model, and why."""


VARIANTS: dict[str, dict[str, Any]] = {
    "deepseek_v2, groups": {
        **CHANGES["deepseek_v2"], "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1,
        "routed_scaling_factor": 16.0,
    },
    "deepseek_v3, groups": {"n_group": 2, "topk_group": 1},
    "deepseek_v3, not normalized": {"norm_topk_prob": False},
    "dots1, normalized": {**CHANGES["dots1"], "norm_topk_prob": True},
    "llama, biases, tied": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "phi3, longrope": {
        "max_position_embeddings": 512, "original_max_position_embeddings": 64,
        "rope_parameters": {
            **_ROPE, "rope_type": "longrope", "original_max_position_embeddings": 64, "factor": 8.0,
            "short_factor": [1.0] * (HEAD // 2), "long_factor": [1.0 + index / 2 for index in range(HEAD // 2)],
        },
    },
    "qwen2, windows": {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"] * 2},
    "qwen3_moe, every second layer": {"decoder_sparse_step": 2},
}  # fmt: skip
"""Further models of a type, with settings that released ones have and the type's defaults lack."""


def types() -> list[str]:
    """Return every type of transformers' causal language models, each followed by its variants."""
    return sorted([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *VARIANTS], key=lambda name: name.replace(",", ""))


def tiny_config(name: str) -> Any:
    """Return a tiny configuration of a type, or of a variant of one."""
    model_type = name.partition(",")[0]
    config = small_config(CONFIG_MAPPING[model_type], VARIANTS.get(name, CHANGES.get(model_type, {})))
    text = config.get_text_config()
    ids = byte_tokenizer().convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    for each in {id(config): config, id(text): text}.values():
        # The token that pads also ends every turn, as in most published fine-tunes.
        each.pad_token_id, each.eos_token_id, each.bos_token_id = ids[0], ids[0], ids[1]
    return config


def small_config(kind: type[PreTrainedConfig], changes: Mapping[str, Any], sizes: Mapping[str, Any] = SIZES) -> Any:
    """Return a configuration of a class with small sizes, the class's own defaults, and changes."""
    default = kind()
    settings: dict[str, Any] = {}
    for name in default.sub_configs or {}:
        part, change = getattr(default, name, None), changes.get(name, {})
        if isinstance(change, PreTrainedConfig):
            settings[name] = change
        elif part is not None:
            settings[name] = small_config(type(part), change, sizes)
    known = default.to_dict()
    renamed = {inner: outer for outer, inner in (default.attribute_map or {}).items()}
    for name, size in sizes.items():
        value = known.get(name, known.get(renamed.get(name, ""), None))
        if type(value) is type(size) and value:
            settings[name] = size
    settings |= {name: 0.0 for name, value in known.items() if isinstance(value, float) and _is_random(name)}
    if known.get("kv_lora_rank"):  # latent attention: as many keys as queries, and widths of its own
        settings |= {"num_key_value_heads": HEADS, "head_dim": SIZES["qk_rope_head_dim"]}
    for name in (*KINDS, MLP_KINDS):
        if isinstance(value := known.get(name), Sequence) and not isinstance(value, str):
            settings[name] = kinds_of(value, alternate=name != MLP_KINDS)
    settings |= {name: value for name, value in changes.items() if name not in default.sub_configs}
    return kind(**settings)


def _is_random(name: str) -> bool:
    """Return whether a setting makes training random, such as dropout or a router's jitter."""
    return any(part in name for part in ("drop", "jitter"))


def kinds_of(layers: Sequence[Any], *, alternate: bool = True) -> list[Any]:
    """Return so few layers that each kind is among them: in turn, or each once and the last one for the rest."""
    kinds = list(dict.fromkeys(layers))
    return [kinds[index % len(kinds) if alternate else min(index, len(kinds) - 1)] for index in range(LAYERS)]


def tiny_model(name: str, seed: int = 0) -> Any:
    """Return a tiny model whose weights all matter."""
    torch.manual_seed(seed)
    return with_weights_that_matter(AutoModelForCausalLM.from_config(tiny_config(name), dtype=torch.float32))


def with_weights_that_matter(model: Any) -> Any:
    """Return a model after its weights became random ones that all matter, in evaluation mode."""
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim >= 2 and "conv" not in path:
                parameter.normal_(std=STD)
            elif parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


def write_tiny(name: str, folder: Path) -> Path:
    """Write a tiny model and the tokenizer of bytes."""
    tiny_model(name).save_pretrained(folder)
    # Once more: code of some types zeroes the padding token's row when it loads.
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    return folder
