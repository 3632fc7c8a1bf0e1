"""Numbers of stored rounds: what trials and references both start from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

UNIFORM = -math.log(264)
"""About what a model with random weights says of any token of the kit's vocabulary."""
CANDIDATES = 6
"""Number of tokens that the teacher of a stored round scores."""
TEMPERATURE = 0.8
"""Sampling temperature of stored rounds."""


def values_of(sample: int, length: int) -> dict[str, np.ndarray]:
    """Return what the tokens of a sample are given: waves of different lengths, so that every sample has its own."""
    angles = sample * 1.7 + 0.7 * np.arange(length)
    old = UNIFORM + 0.3 * np.cos(angles)
    values = {
        "advantages": np.full(length, 0.2 + math.sin(2.0 * sample + 1)),
        "old_logps": old,
        "ref_logps": old + 0.2 * np.sin(1.3 * angles),
        "is_weights": 1.2 + 0.7 * np.sin(1.9 * angles),
        "returns": np.cos(0.4 * angles),
        "old_values": 0.3 * np.sin(0.9 * angles),
    }
    return {name: value.astype(np.float32) for name, value in values.items()}


def taught(ids: Any, sample: int) -> tuple[np.ndarray, np.ndarray]:
    """Return candidates of each token of a sample, and a teacher's log-probabilities of them, [tokens, K]."""
    first = np.asarray(ids, dtype=np.int64) + np.arange(len(ids)) % 3
    candidates = (first[:, None] + 17 * np.arange(CANDIDATES)) % 200
    waves = np.sin(sample + 0.7 * np.arange(len(ids))[:, None] + 1.1 * np.arange(CANDIDATES))
    odds = np.exp(waves)
    return candidates.astype(np.int32), np.log(0.9 * odds / odds.sum(1, keepdims=True)).astype(np.float32)
