"""Optimizers, tuners and layouts, of which each pair either has the numbers of one process or is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiny_runs import BASE, Trained, conversations, run_training

ROWS = conversations(16)
STEPS = {"optimizer": 20, "tuner": 10}
TOLERANCE = 1e-4
ADAM: dict[str, Any] = {"optim.lr": 3e-4, "optim.eps": 1e-6}
LOW: dict[str, Any] = {**ADAM, "optim.update_proj_gap": 6}
"""Projections are made anew within the run."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": ADAM,
    "adamw_8bit": ADAM,
    "adamw_4bit": ADAM,
    "adafactor": {"optim.lr": 1e-3},
    "muon": {"optim.lr": 2e-3, "optim.eps": 1e-6},
    "galore": {**LOW, "optim.rank": 4, "optim.scale": 1.0},
    "q_galore": {**LOW, "optim.rank": 8, "optim.scale": 1.0},
    "apollo": {**LOW, "optim.rank": 4},
    "apollo_mini": LOW,
    "adam_mini": ADAM,
    "schedule_free": ADAM,
    # Lion takes signs: where a gradient is next to 0, rounding alone would move its weight by a whole step.
    "lion": {"optim.lr": 1e-6, "optim.beta1": 0.95},
    "sgd": {"optim.lr": 0.05, "optim.momentum": 0.9},
}
LORA: dict[str, Any] = {
    "tuner.kind": "lora", "tuner.rank": 4, "tuner.alpha": 8.0, "tuner.dropout": 0.0, "optim.lr": 2e-3,
}  # fmt: skip
STEADY: dict[str, Any] = {"optim.schedule": "constant", "optim.lr": 1e-3}


def _module(kind: str, **options: Any) -> dict[str, Any]:
    return {"tuner.kind": kind, "optim.lr": 2e-3, **{f"tuner.{name}": value for name, value in options.items()}}


TUNERS: dict[str, dict[str, Any]] = {
    "full": {"tuner.kind": "full"},
    "lora": LORA,
    "dora": {**LORA, "tuner.dora": True},
    "rslora": {**LORA, "tuner.rslora": True},
    "lora+": {**LORA, "tuner.lora_plus_ratio": 4.0},
    "pissa": {**LORA, "tuner.init": "pissa"},
    "olora": {**LORA, "tuner.init": "olora"},
    "eva": {**LORA, "tuner.init": "eva", "tuner.init_batches": 2},
    "lora_ga": {**LORA, "tuner.init": "lora_ga", "tuner.init_batches": 2},
    "qlora": {**LORA, "tuner.quantize": "bnb-nf4"},
    "loftq": {**LORA, "tuner.quantize": "bnb-nf4", "tuner.init": "loftq"},
    "lora on embedding and head": {**LORA, "tuner.targets": ["embed_tokens", "lm_head", "q_proj"]},
    "lora on experts": {**LORA, "tuner.targets": ["q_proj", "gate_proj", "up_proj", "down_proj"]},
    "miss": _module("miss", rank=12),
    "oft": _module("oft", block_size=8),
    "boft": _module("boft"),
    "hira": _module("hira", rank=4),
    "loha": _module("loha", rank=4, alpha=8.0),
    "lokr": _module("lokr", rank=2, factor=4),
    "gralora": _module("gralora", rank=4, alpha=8.0),
    "vera": _module("vera", rank=8),
    "ia3": _module("ia3"),
    "lisa": {"tuner.kind": "lisa", "tuner.layers": 1, "tuner.interval": 3, **STEADY},
    "badam": {"tuner.kind": "badam", "tuner.interval": 3, **STEADY},
    "neftune": {"tuner.kind": "full", "train.neftune_alpha": 5.0},
}
KINDS: Mapping[str, Mapping[str, dict[str, Any]]] = {"optimizer": OPTIMIZERS, "tuner": TUNERS}
OTHER_START = ("qlora", "loftq", "neftune")
"""What begins elsewhere than the model on disk: with weights in four bits, or noise."""

FSDP, ZERO, MEGATRON = ({"backend.name": name} for name in ("fsdp", "deepspeed", "megatron"))
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "DDP 2": (2, {}),
    "FSDP 2": (2, FSDP),
    "FSDP TP2": (2, {**FSDP, "parallel.tp": 2}),
    "HSDP 2x2": (4, {**FSDP, "parallel.dp_replicate": 2}),
    "FSDP Ulysses 2": (2, {**FSDP, "parallel.ulysses": 2}),
    "ZeRO-1": (2, {**ZERO, "backend.config": "zero1"}),
    "ZeRO-2": (2, {**ZERO, "backend.config": "zero2"}),
    "ZeRO-3": (2, {**ZERO, "backend.config": "zero3"}),
    "AutoTP 2": (2, {**ZERO, "parallel.tp": 2, "backend.config": "zero1"}),
    "Megatron TP2": (2, {**MEGATRON, "parallel.tp": 2, "parallel.sequence_parallel": True}),
    "Megatron PP2": (2, {**MEGATRON, "parallel.pp": 2}),
    "Megatron DP2": (2, MEGATRON),
}


def model_of(kind: str, name: str) -> str:
    """Return which of the models a row trains: rows of whole blocks, experts, or the small one."""
    if kind == "optimizer":
        return "wide" if name.endswith("bit") else "small"
    return "experts" if name == "lora on experts" else "small"


MODELS: dict[str, dict[str, Any]] = {
    "small": {},
    "wide": {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "head_dim": 32},
    "experts": {
        "architecture": "Qwen3Moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
    },
}  # fmt: skip


def settings(kind: str, name: str, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a run, over that of all tiny runs."""
    own = KINDS[kind][name]
    chosen = {"optim.name": name, **own} if kind == "optimizer" else {"optim.eps": 1e-6, **own}
    steps = STEPS[kind]
    ends: dict[str, Any] = {"train.eval_steps": steps, "checkpoint.save_steps": steps}
    if plan:  # What is evaluated and saved is looked at where one process trains.
        ends = {"train.eval_strategy": "no", "checkpoint.save_strategy": "no"}
    return {
        **BASE,
        "train.global_batch": 8,
        "train.micro_batch": 2,
        "train.max_steps": steps,
        "logging.run_name": name.replace(" ", "-"),
        **ends,
        **chosen,
        **plan,
    }


def trained(model: Path, out: Path, kind: str, name: str, plan: Mapping[str, Any]) -> Trained:
    """Return what came of a run in this process."""
    return run_training(model, out, ROWS, settings(kind, name, plan), validation=ROWS[:8])
