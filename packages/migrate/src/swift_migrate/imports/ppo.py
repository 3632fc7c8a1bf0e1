"""PPO recipes of TRL and ms-swift: their flags and different defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swift_migrate.imports import grpo
from swift_migrate.imports.recipe import RecipeImport
from swift_migrate.imports.rules import Table, absent, unneeded

_DEFAULTS: Mapping[str, Any] = {
    "num_generations": 1,
    "num_ppo_epochs": 4,
    "num_mini_batches": 1,
    "kl_coef": 0.05,
    "cliprange": 0.2,
    "cliprange_value": 0.2,
    "vf_coef": 0.1,
    "gamma": 1.0,
    "lam": 0.95,
    "rollout_importance_sampling_mode": "off",
}
"""Defaults of both programs, under the same names."""
_TABLE: Table = {
    "stop_token": unneeded("a completion ends with the model's end-of-turn token"),
    "stop_token_id": absent("a completion ends with the end-of-turn token; set objective.stop_words for others"),
    "total_episodes": absent("set train.max_steps or train.epochs"),
    **dict.fromkeys(
        ("reward_shaping_enable_length", "reward_shaping_enable_repetition", "reward_shaping_enable_eos"),
        absent("set objective.reward_funcs to reward functions for length, repetition and end of text", "false"),
    ),
    **dict.fromkeys(
        (
            "reward_shaping_length_coef", "reward_shaping_repetition_coef", "reward_shaping_repetition_ngram",
            "reward_shaping_eos_bonus", "reward_shaping_eos_missing_penalty", "reward_shaping_eos_min_len",
            "reward_shaping_eos_out_of_range_penalty", "reward_shaping_eos_max_len",
        ),
        unneeded("belongs to a reward that another setting turns on"),
    ),
    **dict.fromkeys(
        ("exp_name", "world_size", "num_total_batches", "micro_batch_size", "local_batch_size", "batch_size",
         "local_mini_batch_size", "mini_batch_size"),
        unneeded("follows from the other settings"),
    ),
}  # fmt: skip


def trl(run: RecipeImport, table: Table) -> None:
    """Translate the rest of a PPO recipe of TRL; `table` is that of its other trainers."""
    run.command = "rlhf"
    run.set("objective.name", "ppo", "trl ppo")
    policy = run.take("sft_model_path")
    if policy is not None:  # model_name_or_path is only the tokenizer of TRL's example
        run.take("model_name_or_path")
        run.set("model.path", policy, "sft_model_path")
    judge = run.take("reward_model_path")
    if judge is None:
        run.lose("reward_model_path", "", "the recipe has no reward model: set objective.reward_model")
    else:
        run.set("objective.reward_model", [str(judge)], "reward_model_path")
        run.set("objective.critic_model", judge, "reward_model_path")
    _rest(run, table, temperature=0.7, longest=53)


def ms_swift(run: RecipeImport, table: Table) -> None:
    """Translate the rest of a PPO recipe of ms-swift; `table` is that of its other commands."""
    judge = run.values.get("reward_model")
    if judge is None:
        run.lose("reward_model", "", "the recipe has no reward model: set objective.reward_model")
    else:
        first = judge[0] if isinstance(judge, list) else judge
        run.default("objective.critic_model", first)
    _rest(run, table, temperature=0.9, longest=512)


def _rest(run: RecipeImport, table: Table, *, temperature: float, longest: int) -> None:
    grpo.apply_flags(run, {**table, **_TABLE})
    run.defaults("objective", **_DEFAULTS, temperature=temperature, max_completion_length=longest)
