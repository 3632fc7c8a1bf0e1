"""Time that one step spent in collectives, as torch.profiler sees it: communication that no computation covers.

Collectives are issued by Python, by DDP's reducer and by operators of DTensor alike, so that nothing but the profiler,
which hangs in torch's own dispatch, sees all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.autograd.profiler import profile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLLECTIVE = re.compile(r"(gloo|nccl|mpi|ucc|xccl):")
"""Names of the spans that process groups record, from the call to the end of the transfer."""
_COMPUTES = re.compile(r"(?!c10d|_c10d|autograd::)\w+::")
"""Names of operators that compute. Those of `autograd::` are spans around others, waiting among them."""
_COMPILED = "## Call Compiled"
"""The beginning of the name of a span around operators that were compiled into one."""


class CollectiveTrace:
    """Traces a block; afterwards, `waits` has the intervals in which the device did nothing but communicate.

    On a GPU these are the kernels of NCCL, less those that compute; on the CPU the collectives, less operators. Times
    are Unix nanoseconds.
    """

    def __init__(self, device: str) -> None:
        self.waits: NDArray[np.int64] = np.zeros((0, 2), dtype=np.int64)
        self._device = device.partition(":")[0]
        on_cpu = self._device == "cpu"
        self._profile: Any = profile(use_kineto=True, use_cpu=on_cpu, use_device=None if on_cpu else self._device)

    def begin(self) -> None:
        """Begin to trace."""
        with _without_messages():
            self._profile.__enter__()

    def end(self) -> None:
        """End the trace, and find out what it holds."""
        self._profile.__exit__(None, None, None)
        self.waits = waits_of(self._profile.kineto_results.events(), self._device)


def is_traced() -> bool:
    """Return whether a profiler is already at work in this thread: there can be one only."""
    return bool(torch._C._autograd._profiler_enabled())


def waits_of(events: Iterable[Any], device: str) -> NDArray[np.int64]:
    """Return the intervals of kineto's events in which something is communicated and nothing computed."""
    communication: list[tuple[int, int]] = []
    computation: list[tuple[int, int]] = []
    for event in events:
        name = event.name()
        if (event.device_type() == torch._C._autograd.DeviceType.CPU) != (device == "cpu"):
            continue
        span = event.is_user_annotation()
        if device == "cpu":
            communicates, computes = bool(_COLLECTIVE.match(name)), bool(_COMPUTES.match(name)) and not span
        else:
            communicates, computes = "nccl" in name.lower() and not span, not span
        if communicates:
            communication.append((event.start_ns(), event.end_ns()))
        elif computes or name.startswith(_COMPILED):
            computation.append((event.start_ns(), event.end_ns()))
    return uncovered(communication, computation)


def uncovered(intervals: Sequence[tuple[int, int]], covers: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Return the union of the intervals without the union of the covers, in order."""
    ours, theirs = (np.array(each, dtype=np.int64).reshape(-1, 2) for each in (intervals, covers))
    times = np.concatenate([ours[:, 0], ours[:, 1], theirs[:, 0], theirs[:, 1]])
    ones, zeros = np.ones(len(ours), np.int64), np.zeros(len(theirs), np.int64)
    in_ours = np.concatenate([ones, -ones, zeros, zeros])
    ones, zeros = np.ones(len(theirs), np.int64), np.zeros(len(ours), np.int64)
    in_theirs = np.concatenate([zeros, zeros, ones, -ones])
    order = np.argsort(times, kind="stable")
    times, depth, covered = times[order], np.cumsum(in_ours[order]), np.cumsum(in_theirs[order])
    between = (depth[:-1] > 0) & (covered[:-1] == 0) & (times[1:] > times[:-1])
    return np.stack([times[:-1][between], times[1:][between]], axis=1)


def length_within(intervals: NDArray[np.int64], begin: int, end: int) -> int:
    """Return how much of the intervals, which do not overlap, lies between two times."""
    clipped = np.clip(intervals, begin, end)
    return int((clipped[:, 1] - clipped[:, 0]).sum())


@contextmanager
def _without_messages() -> Iterator[None]:
    """Keep kineto from reporting every trace on the terminal; it looks at the variable when it is first used."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        yield
    finally:
        if before is None:
            del os.environ["KINETO_LOG_LEVEL"]
