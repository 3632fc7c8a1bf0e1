"""Which answers of a round each of its steps learns from, and how they share the rows of its batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift.data.plans import pack, shuffler

if TYPE_CHECKING:
    from swift.contracts import PlanContext
    from swift.data.samples import Encoded
    from swift_rl.options import OnlineOptions


def dealt(context: PlanContext, options: OnlineOptions, number: int, count: int, within: int) -> list[int]:
    """Return which of the `count` answers of a round one of its steps learns from, the same on every process."""
    iteration, part = divmod(within, options.steps_per_pass)
    order = shuffler(context.layout.order_seed, number * 4096 + iteration).permutation(count)
    per_step = -(-count // options.steps_per_pass)
    return [int(each) for each in order[part * per_step : (part + 1) * per_step]]


def rows_of(context: PlanContext, samples: Sequence[Encoded]) -> list[list[int]]:
    """Return which samples share each row of a batch: packs of them, or every sample by itself."""
    capacity = context.layout.capacity
    if capacity is None:
        return [[index] for index in range(len(samples))]
    lengths = np.array([sample.tokens for sample in samples])
    return [each.tolist() for each in pack(lengths, np.arange(len(samples)), capacity)]
