"""The batches of a round: which completions each step learns from, and how they share the rows of its batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift.data.schedules import pack, shuffler

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift.data.samples import Encoded
    from swift_rl.options import OnlineOptions


def indices_of_step(
    context: ScheduleContext, options: OnlineOptions, number: int, count: int, within: int
) -> list[int]:
    """Return the indices of a round's `count` completions that one step learns from, the same on every process."""
    iteration, part = divmod(within, options.steps_per_pass)
    order = shuffler(context.layout.order_seed, number * 4096 + iteration).permutation(count)
    per_step = -(-count // options.steps_per_pass)
    return [int(each) for each in order[part * per_step : (part + 1) * per_step]]


def rows_of(context: ScheduleContext, samples: Sequence[Encoded]) -> list[list[int]]:
    """Return which samples share each row of a batch: packs of them, or every sample by itself.

    Where rows are padded, those of a micro-batch are of about one length.
    """
    layout = context.layout
    lengths = np.array([sample.tokens for sample in samples])
    if layout.capacity is not None:
        return [each.tolist() for each in pack(lengths, np.arange(len(samples)), layout.capacity)]
    order = range(len(samples)) if layout.flat else by_length(lengths, layout.micro_rows)
    return [[index] for index in order]


def by_length(lengths: np.ndarray, micro_rows: int) -> list[int]:
    """Return an order of the samples in which the rows of each micro-batch have similar lengths.

    Processes take contiguous parts of the order. With bits reversed (0 4 2 6 1 5 3 7), each of two, four or eight parts
    has long and short micro-batches, and those that are computed at the same time have similar lengths too.
    """
    longest_first = np.argsort(-lengths, kind="stable")
    whole, rest = divmod(len(lengths), micro_rows)
    digits = max(1, (whole - 1).bit_length())
    mixed = sorted(range(whole), key=lambda index: f"{index:0{digits}b}"[::-1])
    # A micro-batch that is not full is the last one, wherever the order is cut.
    parts = [longest_first[index * micro_rows : (index + 1) * micro_rows] for index in mixed]
    return [int(each) for part in (*parts, longest_first[len(lengths) - rest :]) for each in part]
