"""How many completions are sampled at once: as many as fit into memory. Planners count with it too: no torch here."""

from __future__ import annotations

MOST_ROWS = 256
"""Rows of a batch: more of them are hardly faster."""
SHARE = 1 / 8
"""Of the device's memory, for the caches of a batch; a model in training may be beside it."""
_PER_LOGIT = 40
"""Bytes that sampling takes for each token of the vocabulary in a row: a few tensors in fp64."""


def row_bytes(vocabulary: int, of_token: float, tokens: int) -> float:
    """Return the bytes of a row of so many tokens, each of which takes `of_token` bytes of cache."""
    return _PER_LOGIT * vocabulary + of_token * tokens


def rows_at_once(device: float, row: float) -> int:
    """Return how many rows of so many bytes are sampled at once on a device of so many bytes."""
    return max(1, min(MOST_ROWS, int(SHARE * device / row)))
