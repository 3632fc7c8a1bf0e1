"""Values of known flags that other programs take and swift does not, and why."""

from __future__ import annotations

from swift.config.compat.meanings import Refused

ENGINE_SETTINGS = (
    *("gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    *("max_num_seqs", "enforce_eager", "enable_prefix_caching", "quantization", "kv_cache_dtype"),
    *("limit_mm_per_prompt", "disable_custom_all_reduce", "max_lora_rank", "enable_expert_parallel"),
)
ENGINE_OPTIONS = {f"vllm_{name}": name for name in ENGINE_SETTINGS}
"""Flags of other programs for a setting of vLLM → the setting's own name."""
_KERNELS = "Type --attn_impl flash_attn (FlashAttention 2), or leave it out for the fastest that this machine has."
_OPTIMIZERS = (
    "Type --optim adamw, adamw_8bit, adamw_4bit, adafactor, adam_mini, galore, q_galore, apollo, apollo_mini, muon, "
    "schedule_free, lion or sgd; a plugin can bring another: docs/how-to/write-an-optimizer.md"
)
_TUNERS = (
    "Type --train_type lora (or dora, rslora, qlora), miss, oft, boft, hira, loha, lokr, gralora, vera, ia3, "
    "lisa, badam or full; a plugin can bring another: docs/how-to/write-a-tuner.md"
)
IN_BACKWARD = "updates in the middle of the backward pass leave no gradient norm, and nothing that could be clipped."
LITTLE_STATE = "For little memory: --optim adamw_4bit or q_galore, or --deepspeed zero3_offload"
_NO_OPTIMIZER = Refused("this optimizer is not implemented.", _OPTIMIZERS)

ATTENTION_ELSEWHERE = {
    **dict.fromkeys(
        ("flash_attention_3", "flash_attn_3", "fa3"), Refused("FlashAttention 3 is not supported.", _KERNELS)
    ),
    **dict.fromkeys(("flex_attention", "xformers"), Refused("this attention kernel is not supported.", _KERNELS)),
}
DEVICES_ELSEWHERE = {
    name: Refused(
        "GPUs are not chosen by number here.",
        f"Set CUDA_VISIBLE_DEVICES={name.rpartition(':')[2]} in front of the command.",
    )
    for name in (f"cuda:{number}" for number in range(16))
} | dict.fromkeys(("mps", "npu", "xpu"), Refused("swift trains on CUDA GPUs and on the CPU.", "Type --device cpu"))
LOSS_SCALES_ELSEWHERE = {
    **dict.fromkeys(
        ("react", "hermes", "qwen", "agentflan", "alpha_umi"),
        Refused(
            "parts of an answer all weigh the same; a loss scale for agents is not implemented.",
            "Type --loss_scale default to learn all answers, or last_round for the last one.",
        ),
    ),
    **dict.fromkeys(
        ("ignore_empty_think", "default+ignore_empty_think", "last_round+ignore_empty_think"),
        Refused(
            "empty <think> blocks are learned like any other text of an answer.",
            "Type --loss_scale default, and take such blocks out of the data.",
        ),
    ),
}
OPTIMIZERS_ELSEWHERE = {
    **dict.fromkeys(
        ("paged_adamw", "paged_adamw_8bit", "paged_adamw_32bit", "paged_lion_8bit", "paged_lion_32bit"),
        Refused(
            "optimizer states that are paged to the CPU are not implemented.",
            "Type --optim adamw_8bit for small states on the GPU, or keep them on the CPU: --deepspeed zero2_offload",
        ),
    ),
    **dict.fromkeys(
        (
            "lion_8bit", "rmsprop", "adagrad", "grokadamw", "galore_adafactor",
            "schedule_free_sgd", "ademamix", "ademamix_8bit", "adamw_anyprecision",
            "adamw_apex_fused", "came_pytorch", "stable_adamw", "dion",
        ),
        _NO_OPTIMIZER,
    ),
    "galore_adamw_8bit": Refused("GaLore's moments are in 32 bits here, Q-GaLore's in 8.", "Type --optim q_galore"),
    **dict.fromkeys(("lomo", "adalomo"), Refused(IN_BACKWARD, LITTLE_STATE)),
    **dict.fromkeys(
        ("galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise"),
        Refused(IN_BACKWARD, "Type --optim galore, or q_galore for less memory."),
    ),
    "apollo_adamw_layerwise": Refused(IN_BACKWARD, "Type --optim apollo, or apollo_mini for less memory."),
}  # fmt: skip
TUNERS_ELSEWHERE = {
    **dict.fromkeys(
        (
            "vblora", "fourierft", "randlora", "hra", "c3a", "road", "shira", "waveft", "delora", "xlora", "poly",
            "mixed",
        ),
        Refused("this tuner is not implemented.", _TUNERS),
    ),
    **dict.fromkeys(
        ("adapter", "prompt", "prefix", "prompt_tuning", "prefix_tuning", "p_tuning", "ln_tuning", "llama_adapter"),
        Refused("what it adds to a model cannot be merged into its weights, or served.", _TUNERS),
    ),
    "longlora": Refused(
        "its attention in shifted groups is not offered.",
        "Type --train_type lora --modules_to_save embed_tokens; for long samples add --ulysses 2 --backend fsdp, or "
        "--cp 2 --backend megatron",
    ),
    "adalora": Refused(
        "it prunes ranks by gradients of whole matrices in every step, which shards do not have.",
        "Type --train_type lora --init_lora_weights eva, which begins with the directions that the data uses",
    ),
    **dict.fromkeys(
        ("reft", "loreft"),
        Refused("it edits hidden states, which cannot be merged into weights, or served.", "Type --train_type lora"),
    ),
    **dict.fromkeys(
        ("lora_ga", "lora-ga", "loraga"),
        Refused("it is a way for LoRA to begin.", "Type --train_type lora --init_lora_weights lora_ga"),
    ),
    **dict.fromkeys(
        ("eva", "pissa", "olora", "loftq"),
        Refused("it is a way for LoRA to begin.", "Type --train_type lora --init_lora_weights eva, pissa or olora"),
    ),
    "llamapro": Refused(
        "blocks are added before training.", "Type: swift convert MODEL --expand-blocks 4 --out OUT   and train these"
    ),
    "bone": Refused("MiSS has taken its place.", "Type --train_type miss"),
    "freeze": Refused(
        "there is no tuner of this name; some of the weights are trained by --train_type full and patterns.",
        "Type --train_type full --trainable_parameters model.layers.27. lm_head",
    ),
}  # fmt: skip
