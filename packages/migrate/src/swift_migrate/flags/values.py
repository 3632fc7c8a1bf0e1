"""Third-party values of known flags that are not supported, and why."""

from __future__ import annotations

from swift.config import Refused

_KERNELS = "Type --attn_impl flash_attn (FlashAttention 2), or leave it out for the fastest kernel on this machine."
_OPTIMIZERS = (
    "Type --optim adamw, adamw_8bit, adamw_4bit, adafactor, adam_mini, galore, q_galore, apollo, apollo_mini, muon, "
    "schedule_free, lion or sgd. A plugin can add others: docs/how-to/write-an-optimizer.md"
)
_TUNERS = (
    "Type --train_type lora (or dora, rslora, qlora), miss, oft, boft, hira, loha, lokr, gralora, vera, ia3, "
    "lisa, badam or full. A plugin can add others: docs/how-to/write-a-tuner.md"
)
IN_BACKWARD = "updates during the backward pass do not allow gradient clipping."
LITTLE_STATE = "To save memory type --optim adamw_4bit or q_galore, or --deepspeed zero3_offload"
_NO_OPTIMIZER = Refused("this optimizer is not implemented.", _OPTIMIZERS)

UNSUPPORTED_ATTENTION = {"xformers": Refused("this attention kernel is not supported.", _KERNELS)}
UNSUPPORTED_DEVICES = {
    name: Refused(
        "GPUs are not selected by number.", f"Type CUDA_VISIBLE_DEVICES={name.rpartition(':')[2]} before the command."
    )
    for name in (f"cuda:{number}" for number in range(16))
} | dict.fromkeys(("mps", "npu", "xpu"), Refused("swift trains on CUDA GPUs and CPUs.", "Type --device cpu"))
UNSUPPORTED_LOSS_SCALES = {
    **dict.fromkeys(
        ("react", "hermes", "qwen", "agentflan", "alpha_umi"),
        Refused(
            "loss scales for agents are not implemented.",
            "Type --loss_scale default to train on all assistant messages, or last_round for the last one.",
        ),
    ),
    **dict.fromkeys(
        ("ignore_empty_think", "default+ignore_empty_think", "last_round+ignore_empty_think"),
        Refused(
            "empty <think> blocks cannot be masked.", "Type --loss_scale default, and remove such blocks from the data."
        ),
    ),
}
UNSUPPORTED_OPTIMIZERS = {
    **dict.fromkeys(
        ("paged_adamw", "paged_adamw_8bit", "paged_adamw_32bit", "paged_lion_8bit", "paged_lion_32bit"),
        Refused(
            "paged optimizers are not implemented.",
            "Type --optim adamw_8bit for a smaller state, or offload it with --deepspeed zero2_offload",
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
    "galore_adamw_8bit": Refused("GaLore has 32-bit moments, Q-GaLore 8-bit moments.", "Type --optim q_galore"),
    **dict.fromkeys(("lomo", "adalomo"), Refused(IN_BACKWARD, LITTLE_STATE)),
    **dict.fromkeys(
        ("galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise"),
        Refused(IN_BACKWARD, "Type --optim galore, or q_galore for less memory."),
    ),
    "apollo_adamw_layerwise": Refused(IN_BACKWARD, "Type --optim apollo, or apollo_mini for less memory."),
}  # fmt: skip
UNSUPPORTED_TUNERS = {
    **dict.fromkeys(
        (
            "vblora", "fourierft", "randlora", "hra", "c3a", "road", "shira", "waveft", "delora", "xlora", "poly",
            "mixed",
        ),
        Refused("this tuner is not implemented.", _TUNERS),
    ),
    **dict.fromkeys(
        ("adapter", "prompt", "prefix", "prompt_tuning", "prefix_tuning", "p_tuning", "ln_tuning", "llama_adapter"),
        Refused("its parameters cannot be merged into the model, or served.", _TUNERS),
    ),
    "longlora": Refused(
        "shifted sparse attention is not implemented.",
        "Type --train_type lora --modules_to_save embed_tokens. For long samples add --ulysses 2 --backend fsdp, or "
        "--cp 2 --backend megatron",
    ),
    "adalora": Refused(
        "it needs gradients of whole matrices in every step, which sharded training does not have.",
        "Type --train_type lora --init_lora_weights eva, which adapts the initialization to the data",
    ),
    **dict.fromkeys(
        ("reft", "loreft"),
        Refused("its edits of hidden states cannot be merged into the model, or served.", "Type --train_type lora"),
    ),
    **dict.fromkeys(
        ("lora_ga", "lora-ga", "loraga"),
        Refused("it is an initialization of LoRA.", "Type --train_type lora --init_lora_weights lora_ga"),
    ),
    **dict.fromkeys(
        ("eva", "pissa", "olora", "loftq"),
        Refused("it is an initialization of LoRA.", "Type --train_type lora --init_lora_weights eva, pissa or olora"),
    ),
    "llamapro": Refused(
        "blocks are added before training.",
        "Type swift convert MODEL --expand-blocks 4 --out OUT, then train the new blocks",
    ),
    "bone": Refused("MiSS replaces it.", "Type --train_type miss"),
    "freeze": Refused(
        "partial training is full training with patterns.",
        "Type --train_type full --trainable_parameters model.layers.27. lm_head",
    ),
}  # fmt: skip
