"""Where the processes of a group meet, though others have met there before them.

Processes write their addresses into a store, under names that torch counts anew for every group. A script that trains
twice, and workers that an elastic launcher starts again, find the same store, with what was written before: addresses
at which nobody listens any more. So each group gets a part of the store of its own, and nobody counts: a process says
that it is here under a token, and the first process answers every token that it finds with the part's name, until all
have come.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.rendezvous import rendezvous

from swift.contracts import World

_LOOKS = 0.005
"""Seconds after which the first process looks again who has come."""


def meet(world: World, timeout: timedelta) -> Store:
    """Return a store that all processes of the group have, and that nobody has written into."""
    if world.rank == 0:
        store, _, _ = next(rendezvous("env://", timeout=timeout))
        name = f"swift/group/{uuid.uuid4().hex}"
        _welcome(store, name, world.size, timeout)
        return PrefixStore(name, store)
    end = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            store, _, _ = next(rendezvous("env://", timeout=timeout))
            return _arrive(store, world.rank, timeout)
        except DistNetworkError:
            # The first process served the store of a group before this one, and has left that group now.
            if time.monotonic() > end:
                raise


def _arrive(store: Store, rank: int, timeout: timedelta) -> Store:
    store.set_timeout(timeout)
    token = uuid.uuid4().hex
    store.set(f"swift/here/{rank}", token)
    name = store.get(f"swift/welcome/{token}").decode()
    store.set(f"{name}/here/{rank}", "")
    return PrefixStore(name, store)


def _welcome(store: Store, name: str, size: int, timeout: timedelta) -> None:
    """Tell each process the name. A token may be one of a process that is gone: then the next is waited for."""
    store.set_timeout(timeout)
    met = dict.fromkeys(range(1, size), b"")
    end = time.monotonic() + timeout.total_seconds()
    while met:
        for rank in list(met):
            if store.check([f"{name}/here/{rank}"]):
                del met[rank]
            elif store.check([f"swift/here/{rank}"]):
                token = store.get(f"swift/here/{rank}")
                if token != met[rank]:
                    store.set(f"swift/welcome/{token.decode()}", name)
                    met[rank] = token
        if met and time.monotonic() > end:
            missing = ", ".join(map(str, met))
            raise DistStoreError(f"Of the {size} processes, {missing} did not come within {timeout}.")
        time.sleep(_LOOKS if met else 0)
