"""Importance weights that correct the train-inference mismatch of sampled completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from swift_rl.algorithm_options import CorrectionOptions

LOG_LIMIT = 20.0
"""Log-weights are clipped to ± this, so that no weight is infinite."""


@dataclass(frozen=True)
class Corrected:
    """Weights of the tokens of a round."""

    weights: list[np.ndarray]
    """float64, one per token; 1 without correction."""
    facts: dict[str, float]
    """Mean weight, fraction of bounded weights, and effective sample size."""


def mode_of(options: CorrectionOptions, *, off_policy: bool) -> str:
    """Return the mode in effect; `off_policy`: the engine computes differently from the model in training."""
    if options.rollout_importance_sampling_mode == "auto":
        return "token_truncate" if off_policy else "off"
    return options.rollout_importance_sampling_mode


def weights(
    old_logps: Sequence[np.ndarray],
    rollout_logps: Sequence[np.ndarray],
    masks: Sequence[np.ndarray],
    options: CorrectionOptions,
    *,
    off_policy: bool = True,
) -> Corrected:
    """Return policy / engine for every token, bounded by the options.

    `old_logps` are the trainer's, `rollout_logps` the engine's, of the same tokens; `masks` selects those that count.
    """
    mode = mode_of(options, off_policy=off_policy)
    apart = [
        np.where(mask, old.astype(np.float64) - engine, 0.0)
        for old, engine, mask in zip(old_logps, rollout_logps, masks, strict=True)
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
