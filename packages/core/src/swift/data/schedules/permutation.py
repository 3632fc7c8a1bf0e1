"""A permutation of millions of samples without memory: each element is computed on request."""

from __future__ import annotations

import hashlib

import numpy as np

ROUNDS = 12
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""The multipliers of splitmix64."""


class KeyedPermutation:
    """A permutation of `range(count)`, chosen by a seed and an epoch: a Feistel network over as many bits as it takes.

    A network of this kind maps the numbers of so many bits to themselves, one to one. What leads out of the range is
    mapped again until it leads into it, which takes two turns at most on average.
    """

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        self._count = count
        bits = max(2, (count - 1).bit_length())
        self._widths = (bits // 2, bits - bits // 2)
        digest = hashlib.blake2b(f"swift order {seed % 2**32} {epoch}".encode(), digest_size=8).digest()
        random = np.random.RandomState(np.frombuffer(digest, dtype="<u4"))
        self._keys = np.frombuffer(random.bytes(8 * ROUNDS), dtype="<u8")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """Return the samples at these positions of the permutation."""
        samples = self._turned(positions.astype(np.uint64))
        outside = np.flatnonzero(samples >= self._count)
        while len(outside):
            samples[outside] = self._turned(samples[outside])
            outside = outside[samples[outside] >= self._count]
        return samples.astype(np.int64)

    def _turned(self, numbers: np.ndarray) -> np.ndarray:
        """Take numbers through the network: by turns, each half changes the other one."""
        low_bits, high_bits = self._widths
        masks = np.uint64((1 << low_bits) - 1), np.uint64((1 << high_bits) - 1)
        low, high = numbers & masks[0], numbers >> np.uint64(low_bits)
        for number, key in enumerate(self._keys):
            if number % 2:
                low = low ^ (_mixed(high + key) & masks[0])
            else:
                high = high ^ (_mixed(low + key) & masks[1])
        return high << np.uint64(low_bits) | low


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Mix the bits of 64-bit numbers, as splitmix64 does at its end."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _MIX[0]
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _MIX[1]
    mixed: np.ndarray = numbers ^ (numbers >> np.uint64(31))
    return mixed
