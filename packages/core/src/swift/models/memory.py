"""How much memory a model takes, known from headers and shapes before anything of it is read."""

from __future__ import annotations

import math

from swift.contracts import ModelSource
from swift.errors import ModelError

SPARE = 0.25
"""Gibibytes that libraries, activations and the system want besides the weights of a small model."""


def model_bytes(source: ModelSource, bytes_per_value: float) -> float:
    """Return the size of all weights, counting tied ones once."""
    return bytes_per_value * sum(math.prod(source.shape(name)) for name in source.names())


def available_bytes() -> int:
    """Memory that can be had without swapping; of the container where there is one that allows less."""
    import psutil

    limits = [int(psutil.virtual_memory().available)]
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            with open(limit) as most, open(used) as now:  # noqa: PTH123  # two small files of the kernel
                limits.append(int(most.read()) - int(now.read()))
        except (OSError, ValueError):  # not in such a group, or "max"
            continue
    return max(0, min(limits))


def check_memory(needed: float, what: str, *, hint: str) -> None:
    """Refuse what will not fit, before loading; `what` is the beginning of a sentence."""
    gib = 2.0**30
    needed += SPARE * gib
    available = available_bytes()
    if needed > available:
        raise ModelError(
            f"{what} takes about {needed / gib:.1f} GiB of memory, and {available / gib:.1f} GiB are available.",
            hint=hint,
        )
