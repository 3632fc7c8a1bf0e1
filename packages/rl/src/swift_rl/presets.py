"""Constants of `--like`: other libraries compute other numbers under the same names.

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
        "lone_completion": "zero",
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
        "lone_completion": "reward",
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
        "lone_completion": "zero",
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
        "lone_completion": "zero",
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
    library = given.get("like")
    constants = dict(PRESETS.get(str(library), {}))
    for name in _without_effect(given) if constants else ():
        constants.pop(name, None)
    if library == "verl" and given.get("kl_estimator") in ("k1", "k2"):
        constants |= {"kl_log_ratio_clamp": None, "kl_clamp": None}
    return {**constants, **given}


def _without_effect(given: Mapping[str, Any]) -> set[str]:
    """Return the constants that have no meaning together with what is given."""
    names: set[str] = set()
    if given.get("loss_type", "dapo") in ("cispo", "sapo", "gspo") or _by_completion(given):
        names |= {"delta"}
    if _by_completion(given):
        names |= {"log_ratio_clamp"}
    if given.get("advantage_estimator", "grpo") != "grpo" or given.get("scale_rewards") in ("batch", "gdpo"):
        names |= {"leave_one_out"}
    return names


def _by_completion(given: Mapping[str, Any]) -> bool:
    level = given.get("importance_sampling_level") or ("sequence" if given.get("loss_type") == "gspo" else "token")
    return level != "token"
