"""One thread that looks after all connections of a process, where gloo would start one for each group.

Each of these threads wakes up a hundred times a second. Engines make dozens of groups, and where several processes
share a core, as they do in tests, that is where much of the time would go.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d

_LOOPBACK = "lo"


def share_device() -> None:
    """Let all groups that this process makes have one device. Its thread does not survive a fork: call this after."""
    plain: Any = getattr(distributed_c10d, "ProcessGroupGloo", None)
    if plain is None:  # a torch without gloo
        return
    device = plain.create_device(interface=_LOOPBACK)

    class ProcessGroupGloo(plain):  # type: ignore[misc]  # what it inherits from is C++
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            options = plain._Options()
            options._timeout, options._devices = timeout, [device]
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = ProcessGroupGloo  # type: ignore[misc]  # torch has no setting for it
