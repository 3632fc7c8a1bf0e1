"""Advantages and returns from rewards and values, in float64 over a whole round: no layout of training matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from swift_rl.advantages import WHITENING_EPS

if TYPE_CHECKING:
    from swift_rl.options import PpoOptions


@dataclass(frozen=True)
class Estimates:
    """One value per token of each completion, in float64."""

    advantages: list[np.ndarray]
    """Whitened over the tokens that are learned from; 0 elsewhere."""
    returns: list[np.ndarray]
    """Targets of the critic; its own value at tokens that are not learned."""


def estimate(
    scores: np.ndarray,
    values: Sequence[np.ndarray],
    divergences: Sequence[np.ndarray] | None,
    masks: Sequence[np.ndarray],
    options: PpoOptions,
    *,
    kl_coef: float,
) -> Estimates:
    """Return the advantages of the tokens of a round, and the returns.

    `scores` are the rewards of whole completions, which the last token of each earns. `divergences` are those of tokens
    from the reference. `masks` select the tokens that the policy sampled and learns from.
    """
    rewards = [
        _rewards(score, mask, None if divergences is None else kl_coef * divergences[index])
        for index, (score, mask) in enumerate(zip(scores, masks, strict=True))
    ]
    if options.whiten_rewards:
        rewards = whitened(rewards, masks, shift_mean=False)
    raw = [
        advantages(each, value, mask, gamma=options.gamma, lam=options.lam)
        for each, value, mask in zip(rewards, values, masks, strict=True)
    ]
    returns = [each + value for each, value in zip(raw, values, strict=True)]
    return Estimates(whitened(raw, masks), returns)


def advantages(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray | None = None, *, gamma: float, lam: float
) -> np.ndarray:
    """Return generalised advantage estimates (arXiv 1506.02438) of one completion; 0 at tokens outside of the mask.

    Tokens outside of it are no steps of the policy: the value that follows a token is that of the next token inside.
    """
    found = np.zeros(len(values), dtype=np.float64)
    inside = np.arange(len(values)) if mask is None else np.flatnonzero(mask)
    advantage, following = 0.0, 0.0
    for index in inside[::-1]:
        here = float(values[index])
        advantage = float(rewards[index]) + gamma * following - here + gamma * lam * advantage
        found[index], following = advantage, here
    return found


def whitened(values: Sequence[np.ndarray], masks: Sequence[np.ndarray], *, shift_mean: bool = True) -> list[np.ndarray]:
    """Return values divided by their deviation over all tokens inside of the masks, and 0 outside.

    Their mean becomes 0, or without `shift_mean` stays unchanged.
    """
    every = np.concatenate([np.asarray(each, dtype=np.float64)[mask] for each, mask in zip(values, masks, strict=True)])
    if len(every) < 2:  # nothing to compare with
        return [np.where(mask, each, 0.0) for each, mask in zip(values, masks, strict=True)]
    mean = every.mean()
    scale = 1 / np.sqrt(every.var(ddof=1) + WHITENING_EPS)
    back = 0.0 if shift_mean else mean
    return [np.where(mask, (each - mean) * scale + back, 0.0) for each, mask in zip(values, masks, strict=True)]


def explained_variance(
    returns: Sequence[np.ndarray], values: Sequence[np.ndarray], masks: Sequence[np.ndarray]
) -> float:
    """Return the fraction of the returns' variance that the critic explains; 0 if they have none."""
    came = np.concatenate([each[mask] for each, mask in zip(returns, masks, strict=True)])
    missed = came - np.concatenate([each[mask] for each, mask in zip(values, masks, strict=True)])
    spread = float(came.var()) if len(came) else 0.0
    return 1 - float(missed.var()) / spread if spread > 0 else 0.0


def adapted(kl_coef: float, kl: float, completions: int, options: PpoOptions) -> float:
    """Return the coefficient of the next round, after one whose mean divergence was `kl` (arXiv 1909.08593)."""
    if options.kl_target is None:
        return kl_coef
    error = float(np.clip(kl / options.kl_target - 1, -0.2, 0.2))
    return kl_coef * (1 + error * completions / options.kl_horizon)


def _rewards(score: float, mask: np.ndarray, penalty: np.ndarray | None) -> np.ndarray:
    rewards = np.zeros(len(mask), dtype=np.float64)
    if penalty is not None:
        rewards -= np.where(mask, penalty, 0.0)
    if mask.any():
        rewards[np.flatnonzero(mask)[-1]] += score
    return rewards
