"""Third-party flags of GRPO and its family, PPO and GKD: those that set an option, and the meaning of the others.

The options belong to the objectives `grpo`, `ppo` and `gkd`, plugins that use the names of TRL and ms-swift.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swift.config import (
    Arity,
    Default,
    Meaning,
    Note,
    NotNeeded,
    Refused,
    Request,
    Set,
    Settings,
    TranslatedFlags,
    Translation,
    as_switch,
    off,
    quoted,
    renamed,
    request,
    switch,
)
from swift.errors import ConfigError
from swift_infer import ENGINE_OPTIONS

OPTIONS: Mapping[str, Arity] = {
    **dict.fromkeys(
        (
            "like", "advantage_estimator", "importance_sampling_level", "num_iterations", "epsilon", "epsilon_high",
            "delta", "cispo_bound", "sapo_temperature_pos", "sapo_temperature_neg", "advantage_eps", "kl_estimator",
            "rollout_importance_sampling_mode", "rollout_importance_sampling_threshold",
            "off_policy_sequence_mask_delta", "top_entropy_quantile", "num_generations", "num_generations_eval",
            "max_completion_length", "eval_temperature", "top_p", "rollout_engine", "rollout_staleness",
            "rollout_batch_size", "rollout_tolerance", "max_idle_rounds",
            "cosine_min_len_value_wrong", "cosine_max_len_value_wrong",
            "cosine_min_len_value_correct", "cosine_max_len_value_correct", "cosine_max_len", "repetition_n_grams",
            "repetition_max_penalty", "soft_max_length", "soft_cache_length", "reward_timeout", "reward_workers",
            "reward_memory", "reward_retries", "reward_on_error", "reward_max_failed", "max_resample_times",
            "step_reward",
            "log_ratio_clamp", "kl_log_ratio_clamp", "kl_clamp", "lone_completion", "whiten_variance",
            "rollout_importance_sampling_min", "rollout_importance_sampling_aggregate", "environment",
            "environment_weight", "max_turns", "completion_length_limit_scope", "environment_timeout",
            "episode_timeout", "template_drift",
            "num_ppo_epochs", "num_mini_batches", "lam", "kl_coef", "kl_target", "kl_horizon",
            "missing_eos_penalty", "cliprange", "cliprange_value", "vf_coef", "critic_model", "critic_lr",
            "critic_warmup", "critic", "ref_model_mixup_alpha", "ref_model_sync_steps",
            "teacher_model", "teacher_adapters", "teacher_engine", "teacher_dtype", "teacher_device",
            "teacher_batch_size", "teacher_kl_coef", "lmbda", "sft_alpha", "divergence_temperature",
        ),
        "value",
    ),
    **dict.fromkeys(
        (
            "kl_in_reward", "use_bias_correction_kl", "overlong_filter", "log_entropy", "dynamic_sample",
            "leave_one_out", "whiten_rewards", "seq_kd", "sync_ref_model", "teacher_as_role",
        ),
        "switch",
    ),
    **dict.fromkeys(("stop_words", "reward_funcs", "reward_weights", "reward_model", "external_plugins"), "list"),
    **dict.fromkeys(("reward_options", "rollout_options", "environment_options", "teacher_options"), "mapping"),
}  # fmt: skip
"""Options of `grpo`, `ppo` and `gkd` that are flags under their own name, with their arity."""

RENAMED: Mapping[str, str] = {
    "teacher_model_name_or_path": "teacher_model",
    "max_new_tokens": "max_completion_length",
    "tau_pos": "sapo_temperature_pos",
    "tau_neg": "sapo_temperature_neg",
    "mask_truncated_completions": "overlong_filter",
    "gym_env": "environment",
    "off_policy_mask_threshold": "off_policy_sequence_mask_delta",
    "vllm_importance_sampling_mode": "rollout_importance_sampling_mode",
    "vllm_importance_sampling_cap": "rollout_importance_sampling_threshold",
    "vllm_importance_sampling_clip_max": "rollout_importance_sampling_threshold",
    "vllm_importance_sampling_clip_min": "rollout_importance_sampling_min",
    "response_length": "max_completion_length",
}
"""Third-party flag → the option that it sets."""
LOSSES = ("dapo", "grpo", "dr_grpo", "gspo", "cispo", "sapo", "bnpo")
"""Values of `--loss_type` that are losses of online learning."""

_LOSSES_HERE = f"Type --loss_type {', '.join(LOSSES[:-1])}, or leave it out for dapo."
_OTHER_LOSS = Refused("this loss is not implemented.", _LOSSES_HERE)
UNSUPPORTED_LOSSES = {
    **dict.fromkeys(("luspo", "vespo", "fipo", "real"), _OTHER_LOSS),
    "gspo-token": Refused(
        "the level of the importance ratio is a separate flag.",
        "Type --loss_type gspo --importance_sampling_level sequence_token",
    ),
}

_SCALES = {"true": "group", "false": "none"}
_TOOLS = "tools belong to an environment."
_OTHER_METHOD = "this method is not implemented."
_MEMORY = NotNeeded("the engine keeps its memory between rounds; --rollout_options limits it")
_ALL_KEPT = NotNeeded("RUN/rollouts has the prompts, completions and rewards of every round")
_OF_ANOTHER = NotNeeded("it is an option of a method that is not implemented")


def _option(name: str) -> Translation:
    return (switch if OPTIONS.get(name) == "switch" else renamed)(f"objective.{name}")


def _scale(_source: str, value: Any) -> Settings:
    name = str(value).lower()
    return (Set("objective.scale_rewards", _SCALES.get(name, name)),)


def _aggregation(source: str, value: Any) -> Settings:
    """Read TRL's name for GDPO, which normalizes each reward before adding them."""
    if value == "normalize_then_sum":
        return (Set("objective.scale_rewards", "gdpo"),)
    if value != "sum_then_normalize":
        raise ConfigError(f"{source} must be sum_then_normalize or normalize_then_sum, not {quoted(value)}.")
    return (Note("sum_then_normalize is not needed: it is the default."),)


def _top_k(_source: str, value: Any) -> Settings:
    return (Set("objective.top_k", 0 if str(value).lower() in ("-1", "none", "null") else value),)


def _top_tokens(_source: str, value: Any) -> Settings:
    return (Set("objective.gkd_logits_topk", 0 if str(value).lower() in ("none", "null") else value),)


def _addresses(_source: str, value: Any) -> Settings:
    return (Set("objective.teacher_model_server", ",".join(str(each) for each in value)),)


def _correction(source: str, value: Any) -> Settings:
    if as_switch(value, source):
        return (Note("is not needed: separate engines are corrected by token_truncate by default."),)
    return (Set("objective.rollout_importance_sampling_mode", "off"),)


def _staleness(source: str, value: Any) -> Settings:
    return (Set("objective.rollout_staleness", 1 if as_switch(value, source) else 0),)


def _scheduler(_source: str, value: Any) -> Settings:
    """Read a multi-turn scheduler as the environment; `gym_scheduler` only requires one."""
    return (Request(value, value) if value == "gym_scheduler" else Set("objective.environment", value),)


_OF_NO_KEY = ""
"""For flags that help does not list, since they count in another unit than the option that they set."""
_SERVER = ("vllm_server_base_url", "vllm_server_host", "vllm_server_port")

FLAGS: TranslatedFlags = (
    *(((name,), f"objective.{name}", arity, _option(name)) for name, arity in OPTIONS.items()),
    *(((flag,), f"objective.{name}", OPTIONS.get(name, "value"), _option(name)) for flag, name in RENAMED.items()),
    (("scale_rewards",), "objective.scale_rewards", "value", _scale),
    (("multi_objective_aggregation",), "objective.scale_rewards", "value", _aggregation),
    (("top_k",), "objective.top_k", "value", _top_k),
    (("gkd_logits_topk",), "objective.gkd_logits_topk", "value", _top_tokens),
    (("teacher_model_server",), "objective.teacher_model_server", "list", _addresses),
    (("vllm_importance_sampling_correction",), "objective.rollout_importance_sampling_mode", "switch", _correction),
    (("async_generate",), "objective.rollout_staleness", "switch", _staleness),
    *(((name,), _OF_NO_KEY, "value", request(name)) for name in ("steps_per_generation", "generation_batch_size")),
    (("multi_turn_scheduler",), "objective.environment", "value", _scheduler),
    (("use_gym_env",), "objective.environment", "switch", request("use_gym_env")),
    (("use_vllm",), "objective.rollout_engine", "switch", request("use_vllm")),
    (("vllm_mode",), "objective.rollout_engine", "value", request("vllm_mode")),
    *(((name,), "objective.rollout_engine", "list", request(name)) for name in _SERVER),
    *(
        ((flag,), "objective.rollout_options", "value", request(f"engine.{name}"))
        for flag, name in ENGINE_OPTIONS.items()
    ),
    (("vllm_engine_kwargs",), "objective.rollout_options", "mapping", request("engine_kwargs")),
)
OWN_OPTIONS = frozenset(
    (
        "loss_type",
        "steps_per_generation",
        *(key.removeprefix("objective.") for _, key, *_ in FLAGS if key != _OF_NO_KEY),
    )
)
"""Options of online learning that no objective of core has."""

ROWS: dict[tuple[str, ...], Meaning] = {
    ("min_p",): Default(("0", "0.0", "none", "null"), "it is always off", "rollouts are sampled without min_p."),
    ("repetition_penalty",): Default(
        ("1", "1.0"),
        "it is always off",
        "rollouts must be sampled from the policy itself, without penalties.",
        "Leave it out; to penalize repetitions type --reward_funcs repetition",
    ),
    ("generation_kwargs",): Default(
        ("{}", "none", "null"),
        "sampling follows the flags",
        "each setting has a flag.",
        "Type --temperature 1 --stop_words TEXT",
    ),
    ("entropy_coef",): Default(("0", "0.0"), "it is always off", "an entropy bonus is not implemented."),
    ("use_adaptive_entropy",): off("an entropy bonus is not implemented."),
    ("entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"): _OF_ANOTHER,
    ("vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg", "real_tau"): _OF_ANOTHER,
    ("fipo_decay_rate", "fipo_clip_range", "fipo_clip_high_only", "fipo_safety_threshold"): _OF_ANOTHER,
    ("advantage_reweight",): Default(("none", "null"), "it is always off", _OTHER_METHOD),
    (
        "rlsd_lambda", "rlsd_reweight_clip_range", "rlsd_lambda_warmup_steps", "rlsd_lambda_decay_steps",
        "rlsd_negative_only", "sdar_gate_beta",
    ): _OF_ANOTHER,
    ("sdar_loss_coef",): Default(("0", "0.0"), "it is always off", _OTHER_METHOD),
    ("chord_sft_dataset",): Refused("CHORD is not implemented."),
    (
        "chord_sft_per_device_train_batch_size", "chord_enable_phi_function", "chord_mu_warmup_steps",
        "chord_mu_decay_steps", "chord_mu_peak", "chord_mu_valley",
    ): _OF_ANOTHER,
    ("local_rollout_forward_batch_size", "num_sample_generations"): NotNeeded(
        "it changes only speed or output; every round is saved in RUN/rollouts"
    ),
    ("value_model", "value_model_path"): Refused("the critic has its own flag.", "Type --critic_model MODEL"),
    ("teacher_tag_key",): Refused("a run has one teacher.", "Train one run per teacher, each on its own rows."),
    ("offload_teacher_model",): NotNeeded(
        "the teacher is not moved; --teacher_device cpu or --teacher_model_server keep it off the GPU"
    ),
    ("teacher_deepspeed", "teacher_model_type"): NotNeeded("an inference engine loads the teacher from its folder"),
    ("teacher_model_revision",): Default(
        ("none", "null"),
        "the newest revision is used",
        "the newest revision is always used.",
        "Download the revision, and pass its folder to --teacher_model.",
    ),
    ("teacher_model_init_kwargs",): Default(
        ("{}", "none", "null"),
        "the teacher is loaded by its config.json",
        "each setting has a flag.",
        "Type --teacher_dtype bfloat16, --teacher_device cuda or --teacher_options {...}",
    ),
    ("use_liger_gkd_loss",): NotNeeded("the logits of all tokens are never in memory at once"),
    ("reward_adapters",): Refused(
        "the folder of the adapter selects both model and adapter.", "Type --reward_model ADAPTER_FOLDER"
    ),
    ("reward_model_type", "reward_template"): NotNeeded("the reward model's folder has its type and template"),
    ("reward_model_revision",): Default(
        ("none", "null"),
        "the newest revision is used",
        "the newest revision is always used.",
        "Download the revision, and pass its folder to --reward_model.",
    ),
    ("reward_model_plugin",): Refused(
        "the output of a reward model is the reward.",
        "To change it, write a reward function: --external_plugins FILE.py --reward_funcs NAME",
    ),
    ("max_tool_calling_iterations",): Default(
        ("0", "none", "null"), "a prompt has one completion", _TOOLS, "Type --environment FILE.py:CLASS --max_turns 5"
    ),
    ("vllm_server_pass_dataset",): NotNeeded("environments and rewards get all columns of the row"),
    ("vllm_structured_outputs_regex", "vllm_guided_decoding_regex", "structured_outputs_regex"): Refused(
        "rollouts must be sampled from the policy itself, without constraints.",
        "Leave it out; to reward a format type --reward_funcs regex",
    ),
    ("vllm_model_impl",): Default(
        ("vllm", "auto"), "vLLM uses its own implementation", "vLLM selects the implementation."
    ),
    ("sleep_level", "vllm_enable_sleep_mode", "offload_model", "offload_optimizer", "move_model_batches"): _MEMORY,
    ("gc_collect_after_offload",): _MEMORY,
    ("vllm_max_model_length", "vllm_max_model_len"): NotNeeded(
        "it follows from the longest prompt and max_completion_length"
    ),
    ("vllm_server_timeout", "vllm_group_port", "vllm_server_group_port"): NotNeeded(
        "trainer and server share no process group; train.timeout_minutes limits waiting"
    ),
    ("enable_flattened_weight_sync", "ds3_gather_for_generation"): NotNeeded(
        "weights are sent to the engine one tensor at a time"
    ),
    ("vllm_enable_lora", "vllm_use_async_engine", "vllm_reasoning_parser", "vllm_disable_cascade_attn"): NotNeeded(
        "it configures the engine, and does not change what is learned"
    ),
    ("vllm_mm_processor_cache_gb",): NotNeeded("it changes memory or speed, and not what is learned"),
    ("vllm_speculative_config",): Refused(
        "there is no flag for speculative decoding.", "Leave it out, or write it into --rollout_options."
    ),
    (
        "cache_implementation", "use_transformers_paged", "use_transformers_continuous_batching",
        "transformers_continuous_batching_config", "cast_lm_head_to_fp32",
    ): NotNeeded("it changes speed or memory; log-probabilities are always computed in float32"),
    (
        "log_completions", "num_completions_to_print", "log_unique_prompts", "wandb_log_unique_prompts",
        "log_multimodal",
    ): _ALL_KEPT,
    ("log_completions_hub_repo",): Refused("training uploads nothing.", "Upload RUN/rollouts after the run."),
    ("log_rollout_offpolicy_metrics",): NotNeeded("the train-inference mismatch is always logged"),
}  # fmt: skip
