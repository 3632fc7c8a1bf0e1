"""Settings of vLLM that are flags of several commands."""

from __future__ import annotations

ENGINE_SETTINGS = (
    *("gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    *("max_num_seqs", "enforce_eager", "enable_prefix_caching", "quantization", "kv_cache_dtype"),
    *("limit_mm_per_prompt", "disable_custom_all_reduce", "max_lora_rank", "enable_expert_parallel"),
)
ENGINE_OPTIONS = {f"vllm_{name}": name for name in ENGINE_SETTINGS}
"""Third-party flag for a setting of vLLM → the setting's own name."""
