"""Importance weights for what the engine that drew the answers says otherwise than the model in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from swift_rl.policy_options import CorrectionOptions

LOG_LIMIT = 20.0
"""A log-weight beyond ± this is taken as this, so that no weight is infinite."""


@dataclass(frozen=True)
class Corrected:
    """Weights of the tokens of a round."""

    weights: list[np.ndarray]
    """float64, one per token; 1 where nothing is corrected."""
    facts: dict[str, float]
    """Mean weight, part of the weights that met a bound, and the effective part of the sample."""


def mode_of(options: CorrectionOptions, *, third_party: bool) -> str:
    """Return the mode in force; `third_party` engines compute otherwise than the model in training."""
    if options.rollout_importance_sampling_mode == "auto":
        return "token_truncate" if third_party else "off"
    return options.rollout_importance_sampling_mode


def weights(
    old_logps: Sequence[np.ndarray],
    rollout_logps: Sequence[np.ndarray],
    masks: Sequence[np.ndarray],
    options: CorrectionOptions,
    *,
    third_party: bool = True,
) -> Corrected:
    """Return policy / engine for every token, bounded as the options say.

    `old_logps` are the trainer's, `rollout_logps` the engine's, of the same tokens; `masks` says which of them count.
    """
    mode = mode_of(options, third_party=third_party)
    apart = [
        np.where(mask, old.astype(np.float64) - drawn, 0.0)
        for old, drawn, mask in zip(old_logps, rollout_logps, masks, strict=True)
    ]
    if mode == "off":
        return Corrected([np.ones(len(each)) for each in apart], {})
    level, bound = mode.split("_")
    ratios = [_ratios(each, mask, level, options) for each, mask in zip(apart, masks, strict=True)]
    low, high = options.rollout_importance_sampling_min or 0.0, options.rollout_importance_sampling_threshold
    within = [(ratio >= low) & (ratio <= high) for ratio in ratios]
    if bound == "truncate":
        bounded = [ratio.clip(low, high) for ratio in ratios]
    else:
        by_token = level == "sequence" and options.rollout_importance_sampling_aggregate == "mean"
        kept = [_exp(each) for each in apart] if by_token else ratios
        bounded = [np.where(inside, ratio, 0.0) for ratio, inside in zip(kept, within, strict=True)]
    return Corrected(bounded, _facts(bounded, within, masks))


def _ratios(apart: np.ndarray, mask: np.ndarray, level: str, options: CorrectionOptions) -> np.ndarray:
    if level == "token":
        return _exp(apart)
    whole = apart.sum()
    if options.rollout_importance_sampling_aggregate == "mean":
        whole = whole / max(int(np.count_nonzero(mask)), 1)
    return np.full(len(apart), _exp(np.asarray(whole)))


def _exp(values: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.exp(values.clip(-LOG_LIMIT, LOG_LIMIT))
    return weights


def _facts(bounded: list[np.ndarray], within: list[np.ndarray], masks: Sequence[np.ndarray]) -> dict[str, float]:
    """Return figures over the tokens that count."""
    pairs = list(zip(bounded, masks, strict=True))
    every = np.concatenate([each[mask.astype(bool)] for each, mask in pairs]) if pairs else np.zeros(0)
    if not len(every):
        return {}
    inside = np.concatenate([each[mask.astype(bool)] for each, mask in zip(within, masks, strict=True)])
    squares = float((every**2).sum())
    return {
        "is_weight": float(every.mean()),
        "is_bounded": float(1 - inside.mean()),
        "is_effective": float(every.sum() ** 2 / (len(every) * squares)) if squares > 0 else 0.0,
    }
