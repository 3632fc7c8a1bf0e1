"""Train-inference mismatch: how far the engine's log-probabilities are from the trainer's, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from swift_rl.rounds.data import RolloutCompletion, Round
    from swift_rl.sync import ProbeResult

_LARGEST = 20.0
"""Differences are clipped to this before they are exponentiated."""


def mismatch(
    of: Round, *, probe: ProbeResult | None = None, truncated: bool = False, trainer_version: int | None = None
) -> dict[str, float]:
    """Return figures of the differences between `logps` (the engine's) and `old_logps` (the trainer's) of a round.

    The mean is split by cause. The probe's difference is arithmetic. The rest is staleness if the trainer's weights are
    of another step, else truncation if `top_p` or `top_k` excluded tokens, else unexplained. The result is empty if no
    completion has both.
    """
    pairs = [_pair(each) for each in of.completions if each.old_logps is not None and len(each.logps)]
    if not pairs:
        return {}
    engine, trainer = (np.concatenate(each) for each in zip(*pairs, strict=True))
    # log of the importance ratio trainer / engine
    ratio = np.clip(trainer - engine, -_LARGEST, _LARGEST)
    weights = np.exp(ratio)
    whole = np.exp(np.clip([float((known - stated).sum()) for stated, known in pairs], -_LARGEST, _LARGEST))
    size = np.abs(trainer - engine)
    return {
        "mismatch/mean": float(size.mean()),
        "mismatch/max": float(size.max()),
        "mismatch/kl_engine_trainer": float((weights - 1 - ratio).mean()),
        "mismatch/kl_trainer_engine": float((weights * ratio - (weights - 1)).mean()),
        "mismatch/multiplied": float(np.exp(np.minimum(size, _LARGEST)).mean()),
        "mismatch/ess_tokens": _effective(weights),
        "mismatch/ess_completions": _effective(whole),
        **_causes(of, float(size.mean()), probe, truncated=truncated, trainer_version=trainer_version),
    }


def _causes(
    of: Round, mean: float, probe: ProbeResult | None, *, truncated: bool, trainer_version: int | None
) -> dict[str, float]:
    if probe is None:
        return {}
    arithmetic = min(mean, probe.mean)
    beyond = mean - arithmetic
    stale = trainer_version is not None and trainer_version != of.version
    cause = "staleness" if stale else "truncation" if truncated else "unexplained"
    parts = dict.fromkeys(("staleness", "truncation", "unexplained"), 0.0) | {cause: beyond}
    return {"mismatch/arithmetic": arithmetic, **{f"mismatch/{name}": value for name, value in parts.items()}}


def _pair(completion: RolloutCompletion) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(completion.logps, dtype=np.float64), np.asarray(completion.old_logps, dtype=np.float64)


def _effective(weights: Sequence[float] | np.ndarray) -> float:
    """Return the effective sample size of importance weights, as a fraction of their number."""
    each = np.asarray(weights, dtype=np.float64)
    return float(each.sum() ** 2 / (len(each) * (each**2).sum()))
