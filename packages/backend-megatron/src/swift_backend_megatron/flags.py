"""Megatron's flags: those that set keys with `--backend megatron`, and the meaning of those without a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swift.config import (
    Arity,
    Default,
    Draft,
    Meaning,
    NotNeeded,
    Refused,
    Set,
    Settings,
    TranslatedFlags,
    Translation,
    off,
    quoted,
    renamed,
    sets,
    switch,
)
from swift.contracts import FlagTopic, Vocabulary
from swift.errors import ConfigError
from swift.parsing import choice

RENAMED: dict[str, tuple[str, ...]] = {
    "backend.recompute_method": ("recompute_method",),
    "backend.recompute_layers": ("recompute_num_layers",),
    "backend.recompute_modules": ("recompute_modules",),
    "backend.first_stage": ("decoder_first_pipeline_num_layers",),
    "backend.last_stage": ("decoder_last_pipeline_num_layers",),
    "backend.moe_capacity": ("moe_expert_capacity_factor",),
    "backend.moe_pad_to_capacity": ("moe_pad_expert_input_to_capacity",),
    "backend.dispatcher": ("moe_token_dispatcher_type",),
    "backend.fp8": ("fp8_format", "fp8"),
    "backend.overlap": ("overlap_grad_reduce", "overlap_param_gather"),
    "logging.output": ("save",),
}
"""Key → flags that set it to their value unchanged."""

_SHARED = ("backend.fp8",)
"""Keys that other backends have as well."""
_ARITIES: dict[str, Arity] = {
    "backend.recompute_modules": "list",
    "backend.moe_pad_to_capacity": "switch",
    "backend.overlap": "switch",
}
_ATTENTION: dict[str, Settings] = {
    "auto": (Set("model.attention", "auto"),),
    "flash": (Set("model.attention", "flash_attention_2"),),
    "fused": (Set("model.attention", "sdpa"),),
    "unfused": (Set("model.attention", "eager"),),
}


def _recompute(source: str, value: Any) -> Settings:
    mode = str(value).lower()
    if mode == "none":
        return (Set("train.gradient_checkpointing", False),)
    if mode not in ("full", "selective"):
        raise ConfigError(f"{source} must be full, selective or none, not {quoted(value)}.")
    return sets({"train.gradient_checkpointing": True, "backend.recompute": mode})


def _fp8(source: str, value: Any) -> Settings:
    if str(value).lower() in ("true", "1", "yes"):
        raise ConfigError(f"{source} must be 'hybrid' or 'e4m3', not {quoted(value)}.", hint=f"Type: {source} hybrid")
    return (Set("backend.fp8", "none" if str(value).lower() == "false" else value),)


def _translation(key: str) -> Translation:
    if key == "backend.fp8":
        return _fp8
    return switch(key) if _ARITIES.get(key) == "switch" else renamed(key)


FLAGS: TranslatedFlags = (
    *((flags, key, _ARITIES.get(key, "value"), _translation(key)) for key, flags in RENAMED.items()),
    (("recompute_granularity",), "train.gradient_checkpointing", "value", _recompute),
    (("attention_backend",), "model.attention", "value", choice(_ATTENTION)),
)

_OF_THE_MODEL = NotNeeded("it comes from the model's config.json")
_FUSED = NotNeeded("swift selects the fused kernels, which change results only by rounding")
ROWS: Mapping[tuple[str, ...], Meaning] = {
    ("use_precision_aware_optimizer",): off(
        "Adam's state and master weights are in fp32.", "To save memory per GPU type --use_distributed_optimizer true"
    ),
    ("optimizer_cpu_offload", "optimizer_offload_fraction"): Default(
        ("false", "0", "0.0"),
        "the optimizer is on the device",
        "the optimizer of the Megatron backend stays on the device.",
        "To offload the optimizer type --deepspeed zero2_offload, or --backend fsdp --backend.offload true",
    ),
    ("tp_comm_overlap",): off("tensor parallel communication is not overlapped."),
    ("load",): Refused(
        "resuming a run and starting from weights are two settings.",
        "To resume a run of swift type --resume_from_checkpoint RUN. To start from a Megatron checkpoint type "
        "swift convert FOLDER --model MODEL, then --model with the converted folder",
    ),
    ("finetune",): NotNeeded("a run starts at step 0 unless --resume_from_checkpoint is given"),
    ("eval_iters",): NotNeeded("evaluation reads the whole validation set; --val_dataset FILE#N limits it to N rows"),
    ("no_save_rng",): NotNeeded("the state of the random generators is always saved, so that resuming is exact"),
    ("no_load_optim", "no_load_rng"): off(
        "a checkpoint is always resumed completely.",
        "To start a new run from its weights pass its folder to --model or --adapters",
    ),
    ("no_initialization", "perform_initialization"): NotNeeded("weights come from the model's files"),
    ("fp8_recipe",): Default(
        ("tensorwise",), "FP8 scales are computed per tensor", "the only FP8 recipe is tensorwise scaling."
    ),
    ("fp8_param_gather", "fp8_param"): off("weights are stored in the model's precision."),
    ("moe_grouped_gemm",): Default(("true",), "experts always use grouped GEMM"),
    ("moe_router_load_balancing_type",): Default(
        ("seq_aux_loss", "aux_loss", "none"),
        "--moe_aux_loss_coeff turns on the balancing loss, of one sample at a time",
        "the only load balancing is the auxiliary loss of one sample at a time (seq_aux_loss).",
        "Leave it out; to set its weight type --moe_aux_loss_coeff 0.001",
    ),
    ("moe_router_dtype",): Default(("fp32",), "routers compute in fp32", "routers always compute in fp32."),
    ("moe_shared_expert_overlap",): NotNeeded("overlapping shared experts does not change results"),
    (
        "cross_entropy_loss_fusion", "cross_entropy_fusion_impl", "calculate_per_token_loss",
    ): NotNeeded("the loss is computed in chunks from hidden states, over all tokens of a step"),
    (
        "moe_permute_fusion", "gradient_accumulation_fusion", "no_gradient_accumulation_fusion",
        "masked_softmax_fusion", "no_masked_softmax_fusion", "bias_dropout_fusion", "no_bias_dropout_fusion",
        "bias_swiglu_fusion", "no_bias_swiglu_fusion", "apply_rope_fusion", "no_rope_fusion",
        "bias_gelu_fusion", "no_bias_gelu_fusion",
    ): _FUSED,
    (
        "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "group_query_attention",
        "num_query_groups", "kv_channels", "position_embedding_type", "rotary_base",
        "rotary_percent", "normalization", "norm_epsilon", "swiglu", "untie_embeddings_and_output_weights",
        "disable_bias_linear", "add_bias_linear", "add_qkv_bias", "qk_layernorm", "num_experts",
        "moe_ffn_hidden_size", "moe_router_topk", "moe_layer_freq", "moe_shared_expert_intermediate_size",
        "use_rotary_position_embeddings", "multi_latent_attention", "padded_vocab_size", "vocab_size",
    ): _OF_THE_MODEL,
    ("accumulate_allreduce_grads_in_fp32", "attention_softmax_in_fp32", "grad_reduce_in_fp32"): Default(
        ("true",), "it is always on", "gradients and softmax always use fp32."
    ),
    ("attention_dropout", "hidden_dropout"): Default(
        ("0", "0.0"), "dropout comes from the model's config.json", hint="Set it in the config.json."
    ),
    ("mtp_num_layers", "mtp_loss_scaling_factor"): Default(
        ("0", "0.0", "none"),
        "it is always off",
        "multi-token prediction layers are not trained; exports keep them unchanged.",
    ),
    (
        "load_safetensors", "use_mcore_models", "dist_ckpt_format", "ckpt_format",
        "auto_detect_ckpt_format", "manual_gc", "manual_gc_interval", "use_cpu_initialization",
    ): NotNeeded("swift has its own checkpoint format, with safetensors"),
    ("transformer_impl",): Default(
        ("transformer_engine",),
        "layers use Transformer Engine on a GPU",
        "layers use Transformer Engine on a GPU and plain torch on a CPU.",
    ),
}  # fmt: skip
"""Flags that set no key."""


def settle_megatron(draft: Draft) -> None:
    """Refuse Megatron's flags with another backend."""
    backend = draft.value("backend.name", "torch")
    for key, flags in (*RENAMED.items(), ("backend.recompute", ("recompute_granularity",))):
        source = draft.source(key) if key in draft.assignments and key.startswith("backend.") else ""
        if backend != "megatron" and key not in _SHARED and source.lstrip("-").replace("-", "_") in flags:
            raise ConfigError(
                f"{source} needs the megatron backend, and the backend is {backend}.",
                hint="Type: --backend megatron, or leave it out.",
            )


class MegatronFlags(Vocabulary):
    """Flags of Megatron-LM and Megatron-SWIFT."""

    def flags(self) -> Sequence[FlagTopic]:
        """Return the flags."""
        return (FlagTopic("Megatron", FLAGS, ROWS, settle=settle_megatron),)
