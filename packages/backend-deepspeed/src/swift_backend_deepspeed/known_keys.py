"""DeepSpeed's keys and the types of their values: what is wrong is reported with its location before anything runs.

DeepSpeed itself ignores unknown keys of the top level silently, and finds a wrong kind only when its engine is made, or
never. `"auto"` and null may stand for any value. Keys that are in no table are not looked at: they belong to parts of
DeepSpeed that are not used here. A test compares these tables with DeepSpeed's own models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from swift.config.limits import fault_of
from swift.errors import ConfigError, did_you_mean

_ZERO_NUMBERS = (
    "allgather_bucket_size", "max_live_parameters", "max_reuse_distance", "model_persistence_threshold",
    "module_granularity_threshold", "param_persistence_threshold", "prefetch_bucket_size", "reduce_bucket_size",
    "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_model_persistence_threshold",
    "stage3_module_granularity_threshold", "stage3_param_persistence_threshold", "stage3_prefetch_bucket_size",
    "sub_group_size", "zero_hpz_partition_size",
)  # fmt: skip
_ZERO_SWITCHES = (
    "allgather_partitions", "allgather_sequential", "compute_grad_norm", "contiguous_gradients", "cpu_offload",
    "cpu_offload_param", "cpu_offload_use_pin_memory", "elastic_checkpoint", "enable_sanity_checks",
    "gather_16bit_weights_on_model_save", "ignore_unused_parameters", "legacy_stage1", "load_from_fp32_weights",
    "log_trace_cache_warnings", "memory_efficient_linear", "override_module_apply", "overlap_comm",
    "parameter_alignment", "pipeline_loading_checkpoint", "reduce_scatter", "round_robin_gradients",
    "save_muon_momentum_buffer_in_memory", "stage3_allgather_sequential", "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save", "stage3_use_all_reduce_for_fetch_params",
    "use_all_reduce_for_fetch_params", "use_multi_rank_bucket_allreduce", "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights", "zero_quantized_weights",
)  # fmt: skip
_SECTIONS = (
    "zero_optimization", "fp16", "bf16", "bfloat16", "amp", "optimizer", "scheduler", "activation_checkpointing",
    "comms_logger", "tensorboard", "wandb", "csv_monitor", "comet", "torch_autocast", "flops_profiler", "autotuning",
    "hybrid_engine", "pipeline", "data_efficiency", "curriculum_learning", "checkpoint", "data_types", "aio",
    "weight_quantization", "compile", "timers", "tensor_parallel", "expert_parallel", "elasticity",
    "sparse_attention", "compression_training", "eigenvalue", "progressive_layer_drop", "quantize_training",
)  # fmt: skip
_SWITCHES = (
    "managed_gradient_accumulation", "dump_state", "disable_python_gc", "disable_allgather", "prescale_gradients",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "wall_clock_breakdown", "memory_breakdown",
    "use_data_before_expert_parallelism", "dataloader_drop_last", "sparse_gradients",
)  # fmt: skip
_COUNTS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "steps_per_print",
    "sequence_parallel_size", "vocabulary_size",
)  # fmt: skip

AUTO = "auto"

Kind = tuple[str, Callable[[Any], bool]]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_size(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 2**53 and value == int(value)


_SECTION: Kind = ("an object", lambda value: isinstance(value, dict))
_SWITCH: Kind = ("true or false", lambda value: isinstance(value, bool))
_COUNT: Kind = ("a whole number of at least 1", lambda value: _is_size(value) and value >= 1)
_SIZE: Kind = ("a whole number of at least 0", _is_size)
_AMOUNT: Kind = ("a number of at least 0", lambda value: _is_number(value) and 0 <= value <= 1e15)
_FRACTION: Kind = ("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
_TEXT: Kind = ("a string", lambda value: isinstance(value, str) and bool(value.strip()))
_BETAS: Kind = (
    "a list of two numbers from 0 to 1",
    lambda value: isinstance(value, list) and len(value) == 2 and all(_FRACTION[1](each) for each in value),
)
_STAGE: Kind = ("0, 1, 2 or 3", lambda value: isinstance(value, int | float) and not isinstance(value, bool))

_OPTIMIZER_PARAMS: Mapping[str, Kind] = {
    "lr": _AMOUNT, "eps": _AMOUNT, "weight_decay": _AMOUNT, "betas": _BETAS,
}  # fmt: skip
_SCHEDULER_PARAMS: Mapping[str, Kind] = {
    "warmup_min_lr": _AMOUNT, "warmup_max_lr": _AMOUNT, "warmup_num_steps": _SIZE, "total_num_steps": _SIZE,
    "warmup_type": _TEXT, "warmup_min_ratio": _FRACTION, "cos_min_ratio": _FRACTION,
}  # fmt: skip
_OFFLOAD: Mapping[str, Kind] = {"device": _TEXT, "nvme_path": _TEXT, "buffer_count": _SIZE, "pin_memory": _SWITCH}
_FP16: Mapping[str, Kind] = {
    "enabled": _SWITCH, "auto_cast": _SWITCH, "loss_scale": _AMOUNT, "initial_scale_power": _SIZE,
    "loss_scale_window": _SIZE, "hysteresis": _SIZE, "consecutive_hysteresis": _SWITCH, "min_loss_scale": _SIZE,
    "fp16_master_weights_and_grads": _SWITCH,
}  # fmt: skip
_BF16: Mapping[str, Kind] = {
    "enabled": _SWITCH, "immediate_grad_update": _SWITCH, "check_grad_overflow": _SWITCH,
    "bf16_master_weights_and_grads": _SWITCH, "bf16_optimizer_states": _SWITCH,
}  # fmt: skip

KINDS: Mapping[str, Mapping[str, Kind]] = {
    "": {
        **dict.fromkeys(_SECTIONS, _SECTION),
        **dict.fromkeys(_SWITCHES, _SWITCH),
        **dict.fromkeys(_COUNTS, _COUNT),
        "gradient_clipping": _AMOUNT,
        "gradient_predivide_factor": _AMOUNT,
        "communication_data_type": _TEXT,
        "seq_parallel_communication_data_type": _TEXT,
        "gradient_allreduce_op": _TEXT,
        "log_level": _TEXT,
    },
    "zero_optimization": {
        **dict.fromkeys(_ZERO_NUMBERS, _SIZE),
        **dict.fromkeys(_ZERO_SWITCHES, _SWITCH),
        **dict.fromkeys(("offload_optimizer", "offload_param", "zenflow", "leaf_module"), _SECTION),
        "stage": _STAGE,
    },
    "zero_optimization.offload_optimizer": {
        **_OFFLOAD, "pipeline_read": _SWITCH, "pipeline_write": _SWITCH, "fast_init": _SWITCH, "ratio": _FRACTION,
        "super_offload": _SWITCH, "cpuadam_cores_perc": _FRACTION,
    },
    "zero_optimization.offload_param": {**_OFFLOAD, "buffer_size": _SIZE, "max_in_cpu": _SIZE},
    "fp16": _FP16,
    "bf16": _BF16,
    "bfloat16": _BF16,
    "optimizer": {"type": _TEXT, "params": _SECTION, "legacy_fusion": _SWITCH},
    "optimizer.params": _OPTIMIZER_PARAMS,
    "scheduler": {"type": _TEXT, "params": _SECTION, "legacy_fusion": _SWITCH},
    "scheduler.params": _SCHEDULER_PARAMS,
    "activation_checkpointing": {
        "partition_activations": _SWITCH, "cpu_checkpointing": _SWITCH, "contiguous_memory_optimization": _SWITCH,
        "synchronize_checkpoint_boundary": _SWITCH, "profile": _SWITCH, "number_checkpoints": _SIZE,
    },
    "tensor_parallel": {"autotp_size": _SIZE},
}  # fmt: skip
"""Section → key → what its value must be."""

_CHECKED = (
    *("", "zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param", "fp16"),
    *("bf16", "bfloat16", "activation_checkpointing", "optimizer", "scheduler"),
)
KNOWN: Mapping[str, frozenset[str]] = {section: frozenset(KINDS[section]) for section in _CHECKED}
"""Section → its keys; sections that are not here are DeepSpeed's own business."""

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


def check_keys(content: Mapping[str, Any], name: str, section: str = "") -> None:
    """Refuse unknown keys and values of the wrong kind; `name` is the file's.

    Null counts as left out, and `"auto"` as anything.
    """
    kinds, known = KINDS.get(section, {}), KNOWN.get(section)
    for key, value in content.items():
        path = f"{section}.{key}".lstrip(".")
        expected = kinds.get(key)
        if expected is not None and value not in (None, AUTO) and not expected[1](value):
            raise ConfigError(f"{name}: {path} must be {expected[0]}, not {_short(value)}.")
        if fault := fault_of(key) or (None if isinstance(value, Mapping) else fault_of(value)):
            raise ConfigError(f"{name}: {path} {fault}.")
        if known is not None and key not in known and value is not None:
            meant = OLD_NAMES.get(key)
            suggestion = f" Did you mean {meant!r}?" if meant else did_you_mean(key, known)
            raise ConfigError(f"{name}: unknown key {path!r}.{suggestion}", hint="Correct it, or leave it out.")
        if isinstance(value, Mapping):
            check_keys(value, name, path)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
