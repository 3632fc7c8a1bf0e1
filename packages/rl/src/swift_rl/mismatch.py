"""The gap between the engine that drew answers and the model that learns from them: how large, and where from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from swift_rl.rounds.data import DrawnAnswer, Round
    from swift_rl.sync import ProbeResult

_LARGEST = 20.0
"""Differences beyond this are counted as this where they are exponents."""


@dataclass(frozen=True)
class WorstToken:
    """One of the tokens that engine and trainer differ on most."""

    answer: int
    """Index into `Round.answers`."""
    place: int
    token: int
    engine: float
    trainer: float


def gap(
    of: Round, *, probe: ProbeResult | None = None, truncated: bool = False, trainer_version: int | None = None
) -> dict[str, float]:
    """Return figures of the differences between `logps` (the engine's) and `old_logps` (the trainer's) of a round.

    The mean is split by cause. What the probe differs by is arithmetic; what is beyond it is staleness where the
    trainer's weights are those of another step, or else truncation where `top_p` or `top_k` left tokens out of the
    draw, or else unexplained. Nothing is returned where no answer has both.
    """
    pairs = [_pair(answer) for answer in of.answers if answer.old_logps is not None and len(answer.logps)]
    if not pairs:
        return {}
    engine, trainer = (np.concatenate(each) for each in zip(*pairs, strict=True))
    # log of the ratio: what the trainer gives the token over what the engine gave it.
    ratio = np.clip(trainer - engine, -_LARGEST, _LARGEST)
    weights = np.exp(ratio)
    whole = np.exp(np.clip([float((known - stated).sum()) for stated, known in pairs], -_LARGEST, _LARGEST))
    size = np.abs(trainer - engine)
    return {
        "gap/mean": float(size.mean()),
        "gap/max": float(size.max()),
        "gap/kl_engine_trainer": float((weights - 1 - ratio).mean()),
        "gap/kl_trainer_engine": float((weights * ratio - (weights - 1)).mean()),
        "gap/multiplied": float(np.exp(np.minimum(size, _LARGEST)).mean()),
        "gap/ess_tokens": _effective(weights),
        "gap/ess_answers": _effective(whole),
        **_causes(of, float(size.mean()), probe, truncated=truncated, trainer_version=trainer_version),
    }


def worst_tokens(of: Round, count: int = 10) -> list[WorstToken]:
    """Return the tokens of a round with the largest differences, the worst first."""
    found = []
    for index, answer in enumerate(of.answers):
        if answer.old_logps is None:
            continue
        engine, trainer = _pair(answer)
        for place in np.argsort(-np.abs(trainer - engine), kind="stable")[:count].tolist():
            token = int(answer.token_ids[place])
            found.append(WorstToken(index, place, token, float(engine[place]), float(trainer[place])))
    return sorted(found, key=lambda each: -abs(each.trainer - each.engine))[:count]


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
    return {"gap/arithmetic": arithmetic, **{f"gap/{name}": value for name, value in parts.items()}}


def _pair(answer: DrawnAnswer) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(answer.logps, dtype=np.float64), np.asarray(answer.old_logps, dtype=np.float64)


def _effective(weights: Sequence[float] | np.ndarray) -> float:
    """Return the effective sample size of importance weights, as a share of their number."""
    each = np.asarray(weights, dtype=np.float64)
    return float(each.sum() ** 2 / (len(each) * (each**2).sum()))
