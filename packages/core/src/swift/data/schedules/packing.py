"""Packing: which samples share a row. Planned over the global order, so that it is the same on any machines."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

WINDOW = 16_384
"""Samples that are packed together. Larger fills better and schedules longer; this many fills short chats by 99 %."""

Packs = list[np.ndarray]


def pack(lengths: np.ndarray, order: np.ndarray, capacity: int, window: int = WINDOW) -> Packs:
    """Return the samples of `order` as packs of at most `capacity` tokens; each sample is in exactly one.

    Best fit, longest first, within windows of the order. A sample that is longer than the capacity (a pair may be)
    has a pack to itself.
    """
    packs: Packs = []
    for start in range(0, len(order), window):
        packs += _best_fit(lengths, order[start : start + window], capacity)
    return packs


def _best_fit(lengths: np.ndarray, order: np.ndarray, capacity: int) -> Packs:
    sizes = lengths[order]
    longest_first = np.argsort(-sizes, kind="stable")
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, pack), sorted
    for sample, size in zip(order[longest_first].tolist(), sizes[longest_first].tolist(), strict=True):
        at = bisect_left(room, (size, -1))
        if at == len(room):
            left, number = capacity, len(packs)
            packs.append([])
        else:
            left, number = room.pop(at)
        packs[number].append(sample)
        insort(room, (left - size, number))
    return [np.array(each, dtype=np.int64) for each in packs]
