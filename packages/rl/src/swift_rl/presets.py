"""Constants of `--like`: other libraries compute other numbers under the same names.

Each preset names every constant in which libraries differ, so that a preset stays what it is when a default changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

Library = Literal["trl", "verl", "openrlhf", "nemo"]

_UNSET = object()
"""For a constant that a library does not have."""
_CONSTANTS: Mapping[str, tuple[Any, ...]] = {
    "advantage_eps": (1e-4, 1e-6, 1e-9, 1e-6),
    "leave_one_out": (False, False, False, True),
    "lone_completion": ("zero", "reward", "zero", "zero"),
    "whiten_variance": (_UNSET, "unbiased", "biased", "biased"),
    "cispo_bound": ("absolute", "relative", _UNSET, "relative"),
    "delta": (None, 3.0, None, None),
    "log_ratio_clamp": (None, 20.0, 20.0, None),
    "kl_log_ratio_clamp": (None, 20.0, None, 20.0),
    "kl_clamp": (None, 10.0, 10.0, 10.0),
    "rollout_importance_sampling_mode": ("sequence_mask", "off", "off", "off"),
    "rollout_importance_sampling_threshold": (3.0, 2.0, 2.0, 2.0),
    "rollout_importance_sampling_aggregate": ("product", "product", "mean", "product"),
}
"""Option → its value in each library."""
PRESETS: Mapping[str, Mapping[str, Any]] = {
    library: {name: values[index] for name, values in _CONSTANTS.items() if values[index] is not _UNSET}
    for index, library in enumerate(get_args(Library))
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
