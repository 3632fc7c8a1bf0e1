"""Which weights have low-bit moments. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEAST = 4096
"""Moments of smaller weights are kept in fp32: they take no memory worth saving."""


def low_bit(shape: Sequence[int], block: int) -> bool:
    """Return whether moments of a weight of this shape are low-bit: its rows are whole blocks."""
    return len(shape) >= 2 and shape[-1] % block == 0 and math.prod(shape) >= _LEAST
