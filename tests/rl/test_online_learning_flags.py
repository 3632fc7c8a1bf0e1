"""Flags of GRPO in TRL and ms-swift: an option here, a note, or a refusal with what to type instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from any_grpo import any_grpo

from swift.config.flags import read_flags
from swift.errors import ConfigError, SwiftError
from swift.parsing import Parsed, config_from_mapping, parse
from swift.parsing.aliases import aliases, training_flags
from swift.parsing.plugin_flags import third_party_flag

TRL = """
disable_dropout cast_lm_head_to_fp32 num_generations num_generations_eval max_completion_length max_prompt_length
ds3_gather_for_generation shuffle_dataset generation_batch_size steps_per_generation temperature top_p top_k min_p
generation_kwargs repetition_penalty cache_implementation use_vllm vllm_mode vllm_model_impl
vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_server_base_url vllm_server_host vllm_server_port
vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size beta
num_iterations epsilon delta epsilon_high sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos
vespo_k_neg vespo_lambda_neg importance_sampling_level reward_weights multi_objective_aggregation scale_rewards
loss_type mask_truncated_completions sync_ref_model ref_model_mixup_alpha ref_model_sync_steps top_entropy_quantile
entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
max_tool_calling_iterations vllm_importance_sampling_correction vllm_importance_sampling_mode
vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_cap
off_policy_mask_threshold use_bias_correction_kl log_completions log_multimodal num_completions_to_print
log_unique_prompts log_completions_hub_repo use_transformers_continuous_batching
transformers_continuous_batching_config use_transformers_paged
"""
MS_SWIFT = """
reward_funcs reward_weights reward_model reward_adapters reward_model_type reward_model_revision reward_template
reward_model_plugin external_plugins advantage_estimator kl_in_reward kl_estimator rollout_importance_sampling_mode
rollout_importance_sampling_threshold log_rollout_offpolicy_metrics off_policy_sequence_mask_delta overlong_filter
dynamic_sample max_resample_times soft_max_length soft_cache_length cosine_min_len_value_wrong
cosine_max_len_value_wrong cosine_min_len_value_correct cosine_max_len_value_correct cosine_max_len
repetition_n_grams repetition_max_penalty tau_pos tau_neg log_entropy stop_words vllm_pipeline_parallel_size
vllm_enable_expert_parallel vllm_max_num_seqs vllm_max_model_len vllm_disable_custom_all_reduce vllm_enforce_eager
vllm_limit_mm_per_prompt vllm_max_lora_rank vllm_enable_prefix_caching vllm_use_async_engine vllm_quantization
vllm_reasoning_parser vllm_disable_cascade_attn vllm_mm_processor_cache_gb vllm_speculative_config
vllm_engine_kwargs vllm_data_parallel_size vllm_enable_lora vllm_server_group_port enable_flattened_weight_sync
async_generate structured_outputs_regex sleep_level move_model_batches offload_optimizer offload_model
wandb_log_unique_prompts teacher_tag_key chord_sft_dataset chord_sft_per_device_train_batch_size
chord_enable_phi_function chord_mu_warmup_steps chord_mu_decay_steps chord_mu_peak chord_mu_valley
multi_turn_scheduler max_turns completion_length_limit_scope vllm_server_pass_dataset use_gym_env gym_env
teacher_kl_coef advantage_reweight rlsd_lambda rlsd_reweight_clip_range rlsd_lambda_warmup_steps
rlsd_lambda_decay_steps rlsd_negative_only sdar_loss_coef sdar_gate_beta real_tau fipo_decay_rate fipo_clip_range
fipo_clip_high_only fipo_safety_threshold teacher_model teacher_adapters teacher_model_server num_ppo_epochs
offload_teacher_model gkd_logits_topk lmbda seq_kd sft_alpha teacher_deepspeed teacher_model_revision
teacher_model_type whiten_rewards kl_coef cliprange vf_coef cliprange_value lam missing_eos_penalty num_mini_batches
"""
TRL_GKD = """
lmbda beta max_new_tokens teacher_model_name_or_path teacher_model_init_kwargs teacher_model_revision seq_kd
use_liger_gkd_loss disable_dropout temperature
"""

__all__ = ["any_grpo"]

pytestmark = pytest.mark.usefixtures("any_grpo")


def parsed(line: str, objective: str = "grpo") -> Parsed:
    return parse(["--rlhf_type", objective, *line.split()], "rlhf", complete=False)


def options(line: str) -> dict[str, Any]:
    return {name: value for name, value in parsed(line).config.objective.model_dump().items() if name != "name"}


def test_every_third_party_grpo_flag_is_handled() -> None:
    """Every GRPO flag of third-party programs is an option, a note or a refusal."""
    for flag in (TRL + TRL_GKD + MS_SWIFT).split():
        assert flag in aliases() or third_party_flag(flag) is not None, flag
        assert list(read_flags([f"--{flag.replace('_', '-')}", "1"], training_flags()).flags) == [flag]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--reward_funcs accuracy format --reward_weights 1 0.5", {"reward_funcs": ("accuracy", "format")}),
        ("--num-generations 8 --epsilon_high 0.28", {"num_generations": "8", "epsilon_high": "0.28"}),
        ("--loss_type DAPO", {"loss_type": "dapo"}),
        ("--scale_rewards false", {"scale_rewards": "none"}),
        ("--scale_rewards batch", {"scale_rewards": "batch"}),
        ("--multi_objective_aggregation normalize_then_sum", {"scale_rewards": "gdpo"}),
        ("--mask_truncated_completions", {"overlong_filter": True}),
        ("--tau_pos 1.2", {"sapo_temperature_pos": "1.2"}),
        ("--top_k -1", {"top_k": 0}),
        ("--async_generate true", {"rollout_staleness": 1}),
        ("--vllm_importance_sampling_correction false", {"rollout_importance_sampling_mode": "off"}),
        ("--vllm_importance_sampling_mode token_mask", {"rollout_importance_sampling_mode": "token_mask"}),
        ("--use_vllm true", {"rollout_engine": "vllm"}),
        ("--use_vllm false --vllm_mode colocate", {"rollout_engine": "transformers"}),
        ("--use_vllm true --vllm_mode server", {"rollout_engine": "http://127.0.0.1:8000"}),
        ("--use_vllm --vllm_server_base_url http://a:1/", {"rollout_engine": "http://a:1"}),
        ("--vllm_mode server --vllm_server_host 0.0.0.0 b", {"rollout_engine": "http://127.0.0.1:8000,http://b:8000"}),
        (
            "--vllm_mode server --vllm_server_host a b --vllm_server_port 1 2",
            {"rollout_engine": "http://a:1,http://b:2"},
        ),
        ("--use_vllm true --vllm_enforce_eager true", {"rollout_options": {"enforce_eager": True}}),
        ('--use_vllm true --vllm_engine_kwargs {"seed":1}', {"rollout_options": {"seed": 1}}),
        ("--steps_per_generation 8 --gradient_accumulation_steps 4", {"steps_per_generation": 2}),
        ("--steps_per_generation 3", {"steps_per_generation": 3}),
        ("--steps_per_generation 6 --global_batch_size 4", {"steps_per_generation": 6}),
        ("--generation_batch_size 64 --global_batch_size 32", {"steps_per_generation": 2}),
        ("--objective.steps_per_generation 3 --gradient_accumulation_steps 4", {"steps_per_generation": "3"}),
    ],
)
def test_third_party_online_flag_sets_option(line: str, expected: dict[str, Any]) -> None:
    assert options(line).items() >= expected.items()


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("--sleep_level 1", "--sleep_level 1 is not needed: the engine keeps its memory"),
        ("--log_completions true", "RUN/rollouts has"),
        ("--repetition_penalty 1.0", "it is always off"),
        ("--use_vllm false --vllm_gpu_memory_utilization 0.3", "vLLM does not run in this process"),
        ("--use_vllm true --vllm_server_port 8001", "--vllm_server_port has no effect: --vllm_mode colocate runs vLLM"),
        (
            "--steps_per_generation 4 --gradient_accumulation_steps 4",
            "counts micro-batches, 4 per step: a round lasts one optimizer step",
        ),
        ("--disable_dropout true", "sets tuner.dropout to 0"),
        ("--multi_turn_scheduler gym_scheduler --gym_env door", "is not needed: --gym_env selects the environment"),
        ("--multi_turn_scheduler gym_scheduler --use_gym_env false", "has no effect: --use_gym_env is false"),
    ],
)
def test_flags_without_effect_or_in_other_units_are_noted(line: str, note: str) -> None:
    assert note in " ".join(parsed(line).notes)


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--loss_type vespo", "this loss is not implemented", "--loss_type dapo"),
        ("--loss_type gspo-token", "is a separate flag", "--importance_sampling_level sequence_token"),
        ("--use_gym_env true", "needs an environment", "--gym_env NAME"),
        ("--max_tool_calling_iterations 3", "tools belong to an environment", "--environment FILE.py:CLASS"),
        ("--min_p 0.1", "sampled without min_p", "Leave it out"),
        ("--entropy_coef 0.01", "an entropy bonus is not implemented", "Leave it out"),
        ("--vllm_mode remote", "must be colocate or server", ""),
        (
            "--vllm_mode server --vllm_server_host a b c --vllm_server_port 1 2",
            "2 values for 3 servers",
            "one for each",
        ),
        ("--steps_per_generation 6 --gradient_accumulation_steps 4", "not a multiple of the 4", "multiple of 4"),
        ("--generation_batch_size 64", "needs train.global_batch", "--global_batch_size N"),
        ("--generation_batch_size 64 --steps_per_generation 2", "both set the length of a round", "Keep one"),
        ("--use_vllm true --objective.rollout_engine transformers", "contradict each other", "Keep one"),
    ],
)
def test_third_party_flags_that_change_results_are_refused(line: str, message: str, hint: str) -> None:
    """What would change the result is refused with what to type."""
    with pytest.raises(SwiftError) as error:
        parsed(line)
    assert message in error.value.message
    assert hint in (error.value.hint or "")


def test_prompts_are_truncated_on_the_left() -> None:
    """Prompts are limited by the limit of samples and keep their end."""
    data = parsed("--max_prompt_length 100").config.data
    assert (data.max_length, data.truncation) == (100, "left")
    with pytest.raises(ConfigError, match="have one limit together"):
        parsed("--max_prompt_length 100", objective="dpo")


def test_reward_flags_without_rewards_are_refused() -> None:
    """Flags of rewards are refused where the objective has none."""
    for line in ("--num_generations 8", "--reward_funcs accuracy", "--external_plugins plugin.py", "--loss_type dapo"):
        with pytest.raises(
            ConfigError, match=r"is an option of online learning \(grpo, ppo or gkd\), but the objective is dpo"
        ) as error:
            parsed(line, objective="dpo")
        assert "swift rlhf --rlhf_type grpo" in (error.value.hint or "")


def test_files_and_keywords_accept_flags(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("rlhf_type: grpo\nreward_funcs: [accuracy]\nuse_vllm: true\nvllm_gpu_memory_utilization: 0.3\n")
    expected = {"reward_funcs": ["accuracy"], "rollout_engine": "vllm"}
    settings = {"rollout_options": {"gpu_memory_utilization": 0.3}}
    of_file = parse([str(file)], "rlhf", complete=False).config.objective.model_dump()
    assert {**of_file, "reward_funcs": list(of_file["reward_funcs"])}.items() >= {**expected, **settings}.items()
    called = config_from_mapping({"rlhf_type": "grpo", "num_generations": 4, "top_k": -1}, "rlhf")
    assert called.config.objective.model_dump().items() >= {"num_generations": 4, "top_k": 0}.items()
