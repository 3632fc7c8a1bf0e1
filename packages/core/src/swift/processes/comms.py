"""Communication of core itself between processes: flags, small objects and barriers. Backends have their own groups."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

T = TypeVar("T")
_LENGTH = 8
"""Bytes that say how long a value is."""
_SHORT = 1024
"""Most values have no more bytes: their lengths and they themselves are told at once."""


class Comms:
    """Control messages on a gloo group, so that they never queue behind an engine's collectives.

    Without a process group everything is answered by this process alone.
    """

    def __init__(self, timeout: timedelta = timedelta(hours=2)) -> None:
        self.distributed = dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if self.distributed else 0
        self.size = dist.get_world_size() if self.distributed else 1
        # The main process tokenises and scores while the others wait, hence the long timeout.
        self._group = dist.new_group(backend="gloo", timeout=timeout) if self.distributed else None

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.distributed:
            dist.barrier(group=self._group)

    def any(self, flag: bool) -> bool:
        """Return True on every process when it is true on one."""
        return self.each_any([flag])[0]

    def each_any(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether it is true on one process; the same on every process."""
        if not self.distributed:
            return list(flags)
        votes = torch.tensor(flags, dtype=torch.int64)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._group)
        return [bool(vote) for vote in votes.tolist()]

    def gather(self, value: T) -> list[T]:
        """Everybody's value, by rank, on every process."""
        if not self.distributed:
            return [value]
        written = pickle.dumps(value)
        head = len(written).to_bytes(_LENGTH, "big") + written[:_SHORT]
        heads = self._gather_bytes(head, _LENGTH + _SHORT)
        lengths = [int.from_bytes(each[:_LENGTH], "big") for each in heads]
        longest = max(lengths)
        values = [each[_LENGTH:] for each in heads] if longest <= _SHORT else self._gather_bytes(written, longest)
        # What unpickling runs is what this run's own processes have written.
        return [pickle.loads(each[:length]) for each, length in zip(values, lengths, strict=True)]

    def _gather_bytes(self, written: bytes, size: int) -> list[bytes]:
        mine = torch.from_numpy(np.frombuffer(written.ljust(size, b"\0"), dtype=np.uint8).copy())
        return [row.numpy().tobytes() for row in self._gathered(mine)]

    def _gathered(self, mine: torch.Tensor) -> list[torch.Tensor]:
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everyone, mine, group=self._group)
        return everyone

    def gather_numbers(self, values: Sequence[float]) -> list[list[float]]:
        """Everybody's numbers, by rank, on every process: one small collective. All have equally many."""
        if not self.distributed:
            return [list(values)]
        return [row.tolist() for row in self._gathered(torch.tensor(values, dtype=torch.float64))]

    def broadcast(self, value: T) -> T:
        """Return the main process's value, on every process."""
        if not self.distributed:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]  # type: ignore[no-any-return]  # what rank 0 put in

    def close(self) -> None:
        """Leave the control group."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None
        self.distributed = False
