"""From rewards to advantages: numpy in float64 over a whole round, so that no layout of the training matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from swift_rl.algorithm_options import AlgorithmOptions

WHITENING_EPS = 1e-8
"""Added to the variance of what is whitened."""


@dataclass(frozen=True)
class Estimated:
    """The advantages of a round."""

    tokens: list[np.ndarray]
    """float64, one value per token of each completion."""
    scored: np.ndarray
    """bool [N]: False if no reward function had a value. Such completions have advantage 0 and are not counted."""
    spread: np.ndarray
    """float64 [groups], in the order of their numbers: standard deviation of the reward, exactly 0 if all completions
    have the same reward, or fewer than two have one."""
    total: np.ndarray
    """float64 [N]: the weighted sum of the rewards, nan where there is none."""


def estimate(
    rewards: np.ndarray,
    groups: np.ndarray,
    lengths: np.ndarray,
    options: AlgorithmOptions,
    kl: Sequence[np.ndarray] | None = None,
    *,
    weights: Sequence[float] | None = None,
) -> Estimated:
    """Return the advantages of completions.

    `rewards` is [completions, functions], with nan where a function had no value. `groups` numbers the prompt of each
    completion, `lengths` has the number of its tokens. `kl` is the divergence of each token from the reference, which
    `kl_in_reward` subtracts `beta` times. `weights` are those of the functions.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    share = np.ones(rewards.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)
    scored, total = totals(rewards, share)
    grouped = GroupStatistics(groups, scored)
    penalties = _penalties(kl, lengths, options)
    if options.scaling == "gdpo":
        per_completion = _each_function_by_itself(rewards, share, groups, scored, options)
        per_completion = per_completion - _summed(penalties)
    elif options.advantage_estimator == "reinforce_plus_plus":
        per_completion = total
    elif options.advantage_estimator == "reinforce_plus_plus_baseline":
        per_completion = grouped.centred(total)
        if options.lone_completion == "reward":
            per_completion = np.where(grouped.size == 1, total, per_completion)
    else:
        per_completion = _compared(total - _summed(penalties), lengths, grouped, options)
        penalties = None
    per_completion = np.where(scored, per_completion, 0.0)
    tokens = [np.full(length, value) for length, value in zip(lengths, per_completion, strict=True)]
    if options.advantage_estimator in ("reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        tokens = _whitened(_returns(tokens, penalties), scored, options)
    return Estimated(tokens, scored, grouped.spread(total), total)


def totals(rewards: np.ndarray, weights: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which completions have a reward, and the weighted sum of each completion's rewards, nan for none."""
    scored = ~np.isnan(rewards).all(axis=1)
    return scored, np.where(scored, np.nansum(rewards * np.asarray(weights, dtype=np.float64), axis=1), np.nan)


def entropy_mask(entropies: Sequence[np.ndarray], part: float) -> list[np.ndarray]:
    """Return which tokens of a round belong to the given part of the highest entropies (arXiv 2506.01939)."""
    if part >= 1 or not any(len(each) for each in entropies):
        return [np.ones(len(each), dtype=bool) for each in entropies]
    least = np.quantile(np.concatenate([each.astype(np.float64) for each in entropies]), 1 - part)
    return [each >= least for each in entropies]


class GroupStatistics:
    """Statistics of the scored completions of each group, spread back to the completions."""

    def __init__(self, groups: np.ndarray, scored: np.ndarray) -> None:
        self._numbers, self._group = np.unique(np.asarray(groups), return_inverse=True)
        self._scored = scored
        self.size = self._sums(scored.astype(np.float64))[self._group]
        """How many completions of its group are scored, for each completion."""

    def mean(self, values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Return the mean of its group for each completion, weighted where there are weights."""
        weights = np.ones(len(values)) if weights is None else weights.astype(np.float64)
        weights = np.where(self._scored, weights, 0.0)
        sums, counts = self._sums(np.where(self._scored, values, 0.0) * weights), self._sums(weights)
        means: np.ndarray = (sums / np.maximum(counts, np.finfo(np.float64).tiny))[self._group]
        return means

    def centred(self, values: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Return values less the mean of their group: exactly 0 where all of a group are equal."""
        low, high = self._range(values)
        return np.where((low == high)[self._group], 0.0, values - self.mean(values, weights))

    def std(self, values: np.ndarray) -> np.ndarray:
        """Return the standard deviation (n − 1) of its group for each completion; 0 for a lone one."""
        squares = self._sums(np.where(self._scored, self.centred(values) ** 2, 0.0))[self._group]
        stds: np.ndarray = np.sqrt(squares / np.maximum(self.size - 1, 1))
        return stds

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Return the standard deviation of each group."""
        spreads = np.zeros(len(self._numbers))
        spreads[self._group] = self.std(values)
        return spreads

    def of_others(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation (n − 1) of the other completions of its group, for each completion."""
        others = np.maximum(self.size - 1, 1)
        apart = self.centred(values)
        means = values - apart * self.size / others
        stds = np.zeros(len(values))
        for group in range(len(self._numbers)):
            members = np.flatnonzero((self._group == group) & self._scored)
            if len(members) > 2:
                left = np.broadcast_to(values[members], (len(members),) * 2)[~np.eye(len(members), dtype=bool)]
                left = left.reshape(len(members), -1)
                stds[members] = np.where(np.ptp(left, axis=1) == 0, 0.0, left.std(axis=1, ddof=1))
        return means, stds

    def _sums(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self._group, weights=values, minlength=len(self._numbers))

    def _range(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.full(len(self._numbers), np.inf), np.full(len(self._numbers), -np.inf)
        np.minimum.at(low, self._group[self._scored], values[self._scored])
        np.maximum.at(high, self._group[self._scored], values[self._scored])
        return low, high


def _compared(
    rewards: np.ndarray, lengths: np.ndarray, groups: GroupStatistics, options: AlgorithmOptions
) -> np.ndarray:
    """Return rewards less their baseline, divided by the standard deviation that the options name."""
    estimator, eps = options.advantage_estimator, options.advantage_eps
    if estimator == "reinforce":
        apart = rewards
    elif estimator == "opo":
        apart = groups.centred(rewards, np.asarray(lengths))
    elif estimator == "rloo":
        apart = groups.centred(rewards) * groups.size / np.maximum(groups.size - 1, 1)
    elif options.leave_one_out:
        means, stds = groups.of_others(rewards)
        apart = rewards - means
        return np.where((stds > 0) & (options.scaling == "group"), apart / (stds + eps), apart)
    else:
        apart = groups.centred(rewards)
    scale = _scale(rewards, groups, options)
    if options.lone_completion == "reward":
        lone = groups.size == 1
        apart, scale = np.where(lone, rewards, apart), np.where(lone, 1.0, scale)
    return apart / (scale + (0.0 if options.scaling == "none" else eps))


def _scale(rewards: np.ndarray, groups: GroupStatistics, options: AlgorithmOptions) -> np.ndarray:
    """Return what divides each completion's centred reward, before `advantage_eps` is added."""
    if options.scaling == "group":
        return groups.std(rewards)
    if options.scaling == "batch":
        return np.full(len(rewards), _std(rewards[~np.isnan(rewards)]))
    return np.ones(len(rewards))


def _each_function_by_itself(
    rewards: np.ndarray, share: np.ndarray, groups: np.ndarray, scored: np.ndarray, options: AlgorithmOptions
) -> np.ndarray:
    """Standardise each function within its group, add them up, standardise over the round (GDPO, arXiv 2601.05242)."""
    summed = np.zeros(len(rewards))
    for values, weight in zip(rewards.T, share, strict=True):
        has = ~np.isnan(values)
        grouped = GroupStatistics(groups, has)
        values = np.where(has, values, 0.0)
        standard = grouped.centred(values) / (grouped.std(values) + options.advantage_eps)
        summed += weight * np.where(has, standard, 0.0)
    known = summed[scored]
    return (summed - (known.mean() if len(known) else 0.0)) / (_std(known) + options.advantage_eps)


def _std(values: np.ndarray) -> float:
    """Return the standard deviation (n − 1): exactly 0 where all values are equal."""
    return 0.0 if len(values) < 2 or np.ptp(values) == 0 else float(values.std(ddof=1))


def _penalties(
    kl: Sequence[np.ndarray] | None, lengths: np.ndarray, options: AlgorithmOptions
) -> list[np.ndarray] | None:
    if kl is None or not options.kl_in_reward or options.beta == 0:
        return None
    for index, (each, length) in enumerate(zip(kl, lengths, strict=True)):
        if len(each) != length:
            raise ValueError(f"completion {index} has {length} tokens, but {len(each)} divergences")
    return [options.beta * np.asarray(each, dtype=np.float64) for each in kl]


def _summed(penalties: list[np.ndarray] | None) -> np.ndarray | float:
    return 0.0 if penalties is None else np.array([each.sum() for each in penalties])


def _returns(tokens: list[np.ndarray], penalties: list[np.ndarray] | None) -> list[np.ndarray]:
    """Return at each token what it and all later ones earn; the reward comes with the last."""
    if penalties is None:
        return tokens
    return [each - penalty[::-1].cumsum()[::-1] for each, penalty in zip(tokens, penalties, strict=True)]


def _whitened(tokens: list[np.ndarray], scored: np.ndarray, options: AlgorithmOptions) -> list[np.ndarray]:
    """Standardise over all tokens of the scored completions."""
    kept = [each for each, known in zip(tokens, scored, strict=True) if known and len(each)]
    if not kept:
        return tokens
    every = np.concatenate(kept)
    if np.ptp(every) == 0:
        return [np.zeros_like(each) for each in tokens]
    variance = every.var(ddof=1 if options.whiten_variance == "unbiased" else 0)
    scale = 1 / np.sqrt(variance + WHITENING_EPS)
    return [
        (each - every.mean()) * scale if known else np.zeros_like(each)
        for each, known in zip(tokens, scored, strict=True)
    ]
