"""Inputs per token of the kit's case about values of tokens: what the trial and the reference both start from."""

from __future__ import annotations

from typing import Any

import numpy as np

TEMPERATURE = 0.7
RATIO, ENTROPY = 0.2, 0.1
"""Of the loss: how strongly a probability ratio counts, and the bonus for entropy."""
TEACHER = (0.05, 0.1, 0.15, 0.2, 0.25)
"""Probabilities of the candidates that the loss pulls towards; the others share what is left."""
LEFT = 1.0 - sum(TEACHER)


def values_of(sample: int, length: int) -> dict[str, np.ndarray]:
    """Return an advantage and an old log-probability for each token of a sample."""
    angles = sample + 0.7 * np.arange(length)
    return {"advantage": np.sin(angles).astype(np.float32), "old": (np.cos(angles) - 3).astype(np.float32)}


def candidates_of(ids: Any) -> np.ndarray:
    """Return as many different tokens of the byte vocabulary for each token as `TEACHER` has."""
    first = np.asarray(ids, dtype=np.int64) + np.arange(len(ids)) % 3
    spread: np.ndarray = (first[:, None] + 13 * np.arange(len(TEACHER))) % 200
    return spread
