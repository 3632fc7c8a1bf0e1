"""What other libraries compute under the same names: the constants of `--like`.

Each preset names every constant in which libraries differ, so that a preset stays what it is when a default changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Library = Literal["trl", "verl", "openrlhf", "nemo"]

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "trl": {
        "advantage_eps": 1e-4,
        "leave_one_out": False,
        "lone_answer": "zero",
        "cispo_bound": "absolute",
        "delta": None,
        "log_ratio_clamp": None,
        "kl_log_ratio_clamp": None,
        "kl_clamp": None,
        "rollout_importance_sampling_mode": "sequence_mask",
        "rollout_importance_sampling_threshold": 3.0,
        "rollout_importance_sampling_aggregate": "product",
    },
    "verl": {
        "advantage_eps": 1e-6,
        "leave_one_out": False,
        "lone_answer": "reward",
        "whiten_variance": "unbiased",
        "cispo_bound": "relative",
        "delta": 3.0,
        "log_ratio_clamp": 20.0,
        "kl_log_ratio_clamp": 20.0,
        "kl_clamp": 10.0,
        "rollout_importance_sampling_mode": "off",
        "rollout_importance_sampling_threshold": 2.0,
        "rollout_importance_sampling_aggregate": "product",
    },
    "openrlhf": {
        "advantage_eps": 1e-9,
        "leave_one_out": False,
        "lone_answer": "zero",
        "whiten_variance": "biased",
        "delta": None,
        "log_ratio_clamp": 20.0,
        "kl_log_ratio_clamp": None,
        "kl_clamp": 10.0,
        "rollout_importance_sampling_mode": "off",
        "rollout_importance_sampling_threshold": 2.0,
        "rollout_importance_sampling_aggregate": "mean",
    },
    "nemo": {
        "advantage_eps": 1e-6,
        "leave_one_out": True,
        "lone_answer": "zero",
        "whiten_variance": "biased",
        "cispo_bound": "relative",
        "delta": None,
        "log_ratio_clamp": None,
        "kl_log_ratio_clamp": 20.0,
        "kl_clamp": 10.0,
        "rollout_importance_sampling_mode": "off",
        "rollout_importance_sampling_threshold": 2.0,
        "rollout_importance_sampling_aggregate": "product",
    },
}


def with_preset(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a user gave, with the constants of the library that `like` names where none is given."""
    constants = dict(PRESETS.get(str(given.get("like")), {}))
    if constants and not _clips_each_token(given):
        constants.pop("delta", None)
        constants.pop("log_ratio_clamp", None)
    if constants and given.get("advantage_estimator", "grpo") != "grpo":
        constants.pop("leave_one_out")
    return {**constants, **given}


def _clips_each_token(given: Mapping[str, Any]) -> bool:
    """Return whether the loss is the clipped one of PPO, which alone has a dual clip and a bound of its logarithm."""
    level = given.get("importance_sampling_level") or "token"
    return given.get("loss_type", "dapo") not in ("cispo", "sapo", "gspo") and level == "token"
