"""GRPO recipes of TRL and ms-swift: their common settings and different defaults."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from swift.config import names_in
from swift.parsing import flags_of_plugins
from swift_migrate.imports.recipe import RecipeImport, is_off
from swift_migrate.imports.rules import Rule, Table, absent, apply, to, unneeded

_REWARDS_OF_TRL = {
    "accuracy_reward": "accuracy",
    "get_soft_overlong_punishment": "soft_overlong",
    "get_repetition_penalty_reward": "repetition",
    "get_cosine_scaled_reward": "cosine",
    "soft_overlong_punishment": "soft_overlong",
    "repetition_penalty": "repetition",
    **{name: name for name in ("accuracy", "format", "cosine", "soft_overlong", "repetition")},
}
"""Rewards of TRL and of recipes for it → the reward here."""
_TRL: Mapping[str, Any] = {
    "num_generations": 8,
    "max_completion_length": 512,
    "temperature": 1.0,
    "top_p": 1.0,
    "beta": 0.0,
    "epsilon": 0.2,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "num_iterations": 1,
}
_MS_SWIFT: Mapping[str, Any] = {
    **_TRL,
    "temperature": 0.9,
    "beta": 0.04,
    "loss_type": "grpo",
    "advantage_estimator": "grpo",
    "rollout_importance_sampling_mode": "off",
}
_SCALES = {"rloo": "none", "reinforce_plus_plus": "batch"}
"""Estimator of ms-swift → its default of scale_rewards."""

TABLE: Table = {
    "system_prompt": to("data.system"),
    "reward_model_name_or_path": to("objective.reward_model"),
    "model_init_kwargs": absent("a model is loaded by its config.json", "{}"),
    "router_aux_loss_coef": absent("set train.router_aux_loss, which is defined otherwise", "0.001"),
    "remove_unused_columns": unneeded("rewards get all columns"),
    "code_language": absent("set the language of a code reward in objective.reward_options"),
}
"""Keys of TRL recipes that are not flags of its trainer, or that other tables read differently."""


def trl(run: RecipeImport, table: Table) -> None:
    """Translate the rest of a GRPO recipe of TRL; `table` is that of its other trainers."""
    _begin(run, "trl grpo")
    _prompts(run)
    _rewards(run)
    correction = run.values.get("vllm_importance_sampling_correction")
    by_vllm = not is_off(run.values.get("use_vllm"))
    if by_vllm and (correction is None or not is_off(correction)):
        run.default("objective.rollout_importance_sampling_mode", "sequence_mask")
        run.default("objective.rollout_importance_sampling_threshold", 3.0)
    apply_flags(run, table)
    run.defaults("objective", **_TRL)
    if not by_vllm:
        run.default("objective.rollout_importance_sampling_mode", "off")


def ms_swift(run: RecipeImport, table: Table) -> None:
    """Translate the rest of a GRPO recipe of ms-swift; `table` is that of its other commands."""
    _begin(run, "rlhf_type")
    if (files := run.values.get("external_plugins")) is not None:
        run.flags.append(f"--external_plugins {shlex.join(names_in(files))}")  # a file may not name code to run
    _need_rewards(run)
    estimator = str(run.values.get("advantage_estimator", "grpo"))
    if estimator in _SCALES:
        run.default("objective.scale_rewards", _SCALES[estimator])
        run.default("objective.kl_in_reward", True)
    if not run.values.get("truncation_strategy"):
        run.default("data.truncation", "left")
    apply_flags(run, table)
    run.defaults("objective", **_MS_SWIFT)


def _begin(run: RecipeImport, origin: str) -> None:
    run.command = "rlhf"
    if "objective.name" not in run.settings:
        run.set("objective.name", "grpo", origin)
    if str(run.values.get("vllm_mode", "")).lower() == "server":
        run.changed(
            "vllm_mode", "server", f"{run.program}'s server has another protocol: start one with swift rollout MODEL",
        )  # fmt: skip


def apply_flags(run: RecipeImport, table: Table) -> None:
    """Read the rest of a recipe by its table, and flags of online learning as flags."""
    own = flags_of_plugins()
    rules: dict[str, Rule] = {name: rule for name, rule in table.items() if name not in own}
    apply(run, {**rules, **TABLE})


def _prompts(run: RecipeImport) -> None:
    column = run.take("dataset_prompt_column")
    if column not in (None, "prompt"):
        run.set("data.columns", {str(column): "query"}, "dataset_prompt_column")


def _rewards(run: RecipeImport) -> None:
    """Translate the names of rewards; other functions must be given by their file."""
    rewards = run.take("reward_funcs")
    names = [] if rewards is None else names_in(rewards)
    known = [_REWARDS_OF_TRL[name] for name in names if name in _REWARDS_OF_TRL]
    for name in names:
        if name not in _REWARDS_OF_TRL:
            run.lose("reward_funcs", name, "set objective.reward_funcs to the function's file: [FILE.py:FUNCTION]")
    if known:
        run.set("objective.reward_funcs", known, "reward_funcs")
    if known and len(known) < len(names) and (weights := run.take("reward_weights")) is not None:
        run.lose("reward_weights", weights, "set a weight for each reward after adding the others")
    _need_rewards(run)


def _need_rewards(run: RecipeImport) -> None:
    there = {"reward_funcs", "reward_model", "reward_model_name_or_path"} & run.values.keys()
    if not there and "objective.reward_funcs" not in run.settings:
        run.lose("reward_funcs", "", "the recipe has no rewards: set objective.reward_funcs")
