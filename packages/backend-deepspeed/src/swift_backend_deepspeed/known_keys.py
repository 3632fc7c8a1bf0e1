"""Keys that DeepSpeed knows, so that a misspelt one is found before anything is loaded.

DeepSpeed itself ignores unknown keys of the top level silently. A test compares these tables with DeepSpeed's own
models.
"""

from __future__ import annotations

from collections.abc import Mapping

ZERO = frozenset({
    "stage", "allgather_bucket_size", "allgather_partitions", "allgather_sequential", "compute_grad_norm",
    "contiguous_gradients", "cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory", "elastic_checkpoint",
    "enable_sanity_checks", "gather_16bit_weights_on_model_save", "ignore_unused_parameters", "leaf_module",
    "legacy_stage1", "load_from_fp32_weights", "log_trace_cache_warnings", "max_live_parameters",
    "max_reuse_distance", "memory_efficient_linear", "model_persistence_threshold", "module_granularity_threshold",
    "offload_optimizer", "offload_param", "overlap_comm", "override_module_apply", "param_persistence_threshold",
    "parameter_alignment", "pipeline_loading_checkpoint", "prefetch_bucket_size", "reduce_bucket_size",
    "reduce_scatter", "round_robin_gradients", "save_muon_momentum_buffer_in_memory", "stage3_allgather_sequential",
    "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
    "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_model_persistence_threshold",
    "stage3_module_granularity_threshold", "stage3_param_persistence_threshold", "stage3_prefetch_bucket_size",
    "stage3_use_all_reduce_for_fetch_params", "sub_group_size", "use_all_reduce_for_fetch_params",
    "use_multi_rank_bucket_allreduce", "zenflow", "zero_hpz_partition_size", "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights", "zero_quantized_weights",
})  # fmt: skip
OFFLOAD_OPTIMIZER = frozenset({
    "device", "nvme_path", "buffer_count", "pin_memory", "pipeline_read", "pipeline_write", "fast_init", "ratio",
    "super_offload", "cpuadam_cores_perc",
})  # fmt: skip
OFFLOAD_PARAM = frozenset({"device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"})
FP16 = frozenset({
    "enabled", "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
    "consecutive_hysteresis", "min_loss_scale", "fp16_master_weights_and_grads",
})  # fmt: skip
BF16 = frozenset({
    "enabled", "immediate_grad_update", "check_grad_overflow", "bf16_master_weights_and_grads",
    "bf16_optimizer_states",
})  # fmt: skip
TOP = frozenset({
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "managed_gradient_accumulation", "steps_per_print", "dump_state", "disable_python_gc", "disable_allgather",
    "communication_data_type", "seq_parallel_communication_data_type", "prescale_gradients",
    "gradient_predivide_factor", "gradient_allreduce_op", "zero_optimization", "activation_checkpointing",
    "comms_logger", "tensorboard", "wandb", "csv_monitor", "comet", "fp16", "bf16", "bfloat16", "amp",
    "torch_autocast", "optimizer", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "scheduler",
    "flops_profiler", "wall_clock_breakdown", "memory_breakdown", "autotuning",
    "use_data_before_expert_parallelism", "hybrid_engine", "pipeline", "data_efficiency", "curriculum_learning",
    "checkpoint", "data_types", "aio", "dataloader_drop_last", "log_level", "weight_quantization", "compile",
    "timers", "tensor_parallel", "expert_parallel", "elasticity", "sparse_attention", "sparse_gradients",
    "compression_training", "eigenvalue", "progressive_layer_drop", "sequence_parallel_size", "vocabulary_size",
    "quantize_training",
})  # fmt: skip
ACTIVATION_CHECKPOINTING = frozenset({
    "partition_activations", "cpu_checkpointing", "contiguous_memory_optimization", "number_checkpoints",
    "synchronize_checkpoint_boundary", "profile",
})  # fmt: skip
NAMED = frozenset({"type", "params", "legacy_fusion"})

KNOWN: Mapping[str, frozenset[str]] = {
    "": TOP,
    "zero_optimization": ZERO,
    "zero_optimization.offload_optimizer": OFFLOAD_OPTIMIZER,
    "zero_optimization.offload_param": OFFLOAD_PARAM,
    "fp16": FP16,
    "bf16": BF16,
    "bfloat16": BF16,
    "activation_checkpointing": ACTIVATION_CHECKPOINTING,
    "optimizer": NAMED,
    "scheduler": NAMED,
}
"""Place → its keys; places that are not here are DeepSpeed's own business."""
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
