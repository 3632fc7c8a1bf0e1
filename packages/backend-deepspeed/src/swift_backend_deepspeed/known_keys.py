"""Keys that DeepSpeed knows, so that a misspelt one is found before anything is loaded.

DeepSpeed itself ignores unknown keys of the top level silently. A test compares these tables with DeepSpeed's own
models.
"""

from __future__ import annotations

from collections.abc import Mapping

from swift_backend_deepspeed.value_kinds import KINDS

_SECTIONS = (
    *("", "zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param", "fp16"),
    *("bf16", "bfloat16", "activation_checkpointing", "optimizer", "scheduler"),
)
KNOWN: Mapping[str, frozenset[str]] = {section: frozenset(KINDS[section]) for section in _SECTIONS}
"""Section → its keys; sections that are not here are DeepSpeed's own business."""
FREE = frozenset({"params"})

OLD_NAMES: Mapping[str, str] = {
    "stage3_gather_16bit_weights_every_iter": "stage3_gather_16bit_weights_on_model_save",
    "gather_16bit_weights": "stage3_gather_16bit_weights_on_model_save",
    "train_micro_batch_size": "train_micro_batch_size_per_gpu",
    "offload_params": "offload_param",
    "cpu_offload_params": "offload_param",
}
"""Outdated or mistyped keys, and the current ones."""

DONE_BY_SWIFT: Mapping[str, str] = {
    "amp": "Apex is not used; the precision is --torch_dtype.",
    "curriculum_learning": "swift distributes the samples.",
    "data_efficiency": "swift distributes the samples.",
    "dataloader_drop_last": "swift distributes the samples.",
    "elasticity": "the number of processes may change at any resume.",
    "autotuning": "there is no autotuning run.",
    "checkpoint": "checkpoints are in swift's own format.",
    "pipeline": "ZeRO has no pipeline; type --backend megatron --pp.",
    "sparse_attention": "attention is chosen by --attn_impl.",
}
"""Sections whose work swift does itself."""
