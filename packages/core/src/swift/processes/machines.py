"""Where the launchers of several machines meet: the first of them keeps the store, and leaves it last."""

from __future__ import annotations

import time
from contextlib import suppress

from torch._C._distributed_c10d import Store
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous, create_rdzv_handler

BACKEND = "swift"
"""What torch's launcher knows it by."""
FAREWELL = 5.0
"""Seconds that the keeper waits in the end for the others."""


class Machines(StaticTCPRendezvous):
    """torch's own for a known number of machines, whose keeper waits in the end until the others have left.

    All leave through a barrier in the store. The keeper may be through it, and gone with the store, before the others
    have their answer, of which torch would complain on their terminals.
    """

    def get_backend(self) -> str:
        return BACKEND

    def shutdown(self) -> bool:
        """Leave: for good with these words, or after all others have said them."""
        if self._store is not None:
            with suppress(RuntimeError):  # a store that is gone
                if self.rank > 0:
                    self._store.set(_left(self.rank), "")
                else:
                    self._await_others(self._store)
        return True

    def _await_others(self, store: Store) -> None:
        end = time.monotonic() + FAREWELL
        others = [_left(rank) for rank in range(1, self.world_size)]
        while not store.check(others) and time.monotonic() < end:
            time.sleep(0.005)


def _left(rank: int) -> str:
    return f"swift/left/{rank}"


def make_known() -> None:
    """Tell torch's launcher of this way to meet."""
    rendezvous_handler_registry.register(BACKEND, _machines)


def _machines(parameters: RendezvousParameters) -> Machines:
    made = create_rdzv_handler(parameters)
    assert isinstance(made, StaticTCPRendezvous)
    seconds = int(made.timeout.total_seconds())
    return Machines(made.master_addr, made.master_port, made.rank, made.world_size, made.run_id, seconds)
