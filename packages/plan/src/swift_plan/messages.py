"""Times of messages between processes of one machine, fitted to those that were measured.

The time of one message of `n` bytes is α + n / β: seconds that it takes at least, and bytes a second. Both are found by
least squares on relative errors, so that small messages count as much as large ones. Neither is below 0, and a time
that was disturbed pulls no harder than one that is twice as far off as is usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from swift.contracts import Traffic

_FAR = 2.0
"""Errors beyond so many times the usual one pull no harder."""
_ROUNDS = 30


class MessageKind(NamedTuple):
    """Messages that take alike: of one operation, in groups of so many processes that are as far apart as ranks."""

    operation: str
    ways: int
    stride: int

    @classmethod
    def of(cls, traffic: Traffic) -> MessageKind:
        """Return that of a plan's messages."""
        return cls(traffic.operation, traffic.ways, traffic.stride)

    def __str__(self) -> str:
        """Return it in words."""
        apart = f", {self.stride} apart" if self.stride > 1 else ""
        return f"{self.operation} of {self.ways}{apart}"


@dataclass(frozen=True)
class MessageCost:
    """The time of one message."""

    latency: float
    """α: seconds, however small it is."""
    per_byte: float
    """1 / β: seconds for each byte that a process sends."""

    def seconds(self, sent: float, calls: float = 1.0) -> float:
        """Return the seconds of so many messages, in which a process sends so many bytes in all."""
        return calls * self.latency + sent * self.per_byte

    def __str__(self) -> str:
        """Return it as people read it."""
        speed = f"{1e-9 / self.per_byte:.3g} GB/s" if self.per_byte else "any number of bytes"
        return f"{self.latency * 1e6:.3g} µs and {speed}"


def fit_messages(sent: Sequence[float], seconds: Sequence[float]) -> MessageCost:
    """Return α and β of messages in which a process sends so many bytes, from the seconds that each of them took."""
    weights = [1.0] * len(sent)
    cost = MessageCost(0.0, 0.0)
    for _ in range(_ROUNDS):
        before, cost = cost, _weighted(sent, seconds, weights)
        if cost == before:
            break
        errors = [abs(cost.seconds(size) / took - 1) for size, took in zip(sent, seconds, strict=True)]
        usual = max(median(errors), 1e-9)
        weights = [min(1.0, _FAR * usual / error) if error else 1.0 for error in errors]
    return cost


def _weighted(sent: Sequence[float], seconds: Sequence[float], weights: Sequence[float]) -> MessageCost:
    """Return the least squares of (α + n / β) / t - 1, where neither is below 0."""
    rows = [(weight, 1 / took, size / took) for size, took, weight in zip(sent, seconds, weights, strict=True)]
    one_one = sum(weight * one * one for weight, one, _ in rows)
    one_size = sum(weight * one * size for weight, one, size in rows)
    size_size = sum(weight * size * size for weight, _, size in rows)
    one, size = sum(weight * one for weight, one, _ in rows), sum(weight * size for weight, _, size in rows)
    over = one_one * size_size - one_size * one_size
    if over > 1e-12 * one_one * size_size:
        latency, per_byte = (one * size_size - size * one_size) / over, (size * one_one - one * one_size) / over
        if latency >= 0 and per_byte >= 0:
            return MessageCost(latency, per_byte)
    # At the border one of them is 0, and the better one of the two borders counts.
    ends = [MessageCost(one / one_one, 0.0), MessageCost(0.0, size / size_size)]
    return min(ends, key=lambda end: sum(
        weight * (end.latency * by_one + end.per_byte * by_size - 1) ** 2 for weight, by_one, by_size in rows
    ))  # fmt: skip
