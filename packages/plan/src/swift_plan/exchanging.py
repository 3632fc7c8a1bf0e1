"""One process of level 3: times messages between the processes of this machine, group by group.

`torchrun ... -m swift_plan.exchanging ORDER.json`. The first process prints a line of JSON for each kind of message.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from swift.toolkit import choose_device, current_world, follow_launcher, join_group, leave_group
from swift_plan.messages import MessageKind

_ROUNDS, _SHORT_ROUNDS = 5, 20
"""Of each size, in turns with the others; more of sizes that take little time."""
_SHORT = 2**20
"""Bytes of such a size at most."""
_ENOUGH, _MOST = 4 * 2**20, 8
"""Bytes that one round of a size moves at least, unless that takes more than so many messages."""
_TIMEOUT = timedelta(minutes=5)


class Exchange:
    """One kind of message, in all groups of the machine at the same time."""

    def __init__(self, kind: MessageKind, device: torch.device) -> None:
        self.kind, self._device = kind, device
        rank, world = dist.get_rank(), dist.get_world_size()
        for members in groups(kind, world):
            group = dist.new_group(members)
            if rank in members:
                self._members, self._group = members, group
        index = self._members.index(rank)
        self._next, self._last = self._members[(index + 1) % kind.ways], self._members[index - 1]

    def seconds(self, sizes: Sequence[int]) -> list[float]:
        """Return the seconds of one message of each size, in bytes as a plan counts them: the least of some rounds.

        What else the machine does can only make a message slower, and is nothing that a plan could know.
        """
        calls = [self._call(size) for size in sizes]
        times = [max(1, min(_MOST, _ENOUGH // size)) for size in sizes]
        for call in calls:
            call()
        least = torch.full((len(sizes),), torch.inf, dtype=torch.float64, device=self._device)
        for number in range(_SHORT_ROUNDS):
            for index, size in enumerate(sizes):
                if number < (_SHORT_ROUNDS if size <= _SHORT else _ROUNDS):
                    took = least.new_tensor(self._round(calls[index], times[index]))
                    dist.all_reduce(took, dist.ReduceOp.MAX)
                    least[index] = torch.minimum(least[index], took)
        return [float(each) for each in least]

    def _round(self, call: Callable[[], None], count: int) -> float:
        dist.barrier()
        self._settle()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        self._settle()
        return (time.perf_counter() - begin) / count

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _call(self, size: int) -> Callable[[], None]:
        """Return what sends one message of so many bytes."""
        ways, group = self.kind.ways, self._group
        whole = torch.zeros(max(1, size // 4 // ways) * ways, device=self._device)
        if self.kind.operation == "all_reduce":
            return lambda: _wait(dist.all_reduce(whole, group=group))
        if self.kind.operation == "all_to_all":
            came = torch.empty_like(whole)
            return lambda: _wait(dist.all_to_all_single(came, whole, group=group))
        if self.kind.operation == "send":
            came = torch.empty_like(whole)
            return lambda: self._pass_on(whole, came)
        part = torch.zeros(len(whole) // ways, device=self._device)
        if self.kind.operation == "all_gather":
            return lambda: _wait(dist.all_gather_into_tensor(whole, part, group=group))
        return lambda: _wait(dist.reduce_scatter_tensor(part, whole, group=group))

    def _pass_on(self, whole: torch.Tensor, came: torch.Tensor) -> None:
        """Send to the next process of the group, and receive from the one before, as pipelines and rings do."""
        both = [
            dist.P2POp(dist.isend, whole, self._next, self._group),
            dist.P2POp(dist.irecv, came, self._last, self._group),
        ]
        for each in dist.batch_isend_irecv(both):
            each.wait()


def groups(kind: MessageKind, world: int) -> list[list[int]]:
    """Return the processes of each group: `ways` of them, `stride` apart."""
    block = kind.ways * kind.stride
    return [
        [start + first + each * kind.stride for each in range(kind.ways)]
        for start in range(0, world, block)
        for first in range(kind.stride)
    ]


def _wait(_: Any) -> None:
    """Take what a blocking operation returns."""


def main(order: str) -> None:
    """Time all kinds of messages that the file orders, at its sizes."""
    follow_launcher()
    ordered = json.loads(Path(order).read_text(encoding="utf-8"))
    world = current_world()
    device = choose_device("auto", world)
    join_group(device, world, timeout=_TIMEOUT)
    for kind in (MessageKind(*each) for each in ordered["kinds"]):
        seconds = Exchange(kind, device).seconds(ordered["sizes"])
        if world.rank == 0:
            sys.stdout.write(json.dumps({"kind": kind, "sizes": ordered["sizes"], "seconds": seconds}) + "\n")
            sys.stdout.flush()
    leave_group()


if __name__ == "__main__":
    main(sys.argv[1])
