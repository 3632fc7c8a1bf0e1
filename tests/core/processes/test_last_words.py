"""The process that keeps the store ends after those that still have something to say there."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from processes import on_processes, succeeded
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry

from swift.contracts import World
from swift.processes import machines
from swift.processes.comms import Comms
from swift.processes.watchdog import Watchdog
from swift_testing.crew import free_port


def ended(folder: Path, in_order: bool) -> bool:
    """Whether the other one had ended when this process had: process 1 comes late."""
    dist.init_process_group("gloo")
    comms = Comms()
    watchdog = Watchdog(World(comms.rank, comms.rank, 2), timedelta(minutes=10), comms.broadcast, folder=folder)
    comms.barrier()
    if comms.rank == 1:
        time.sleep(0.5)
        (folder / f"ends-{in_order}").touch()
    watchdog.close(in_order=in_order)
    found = (folder / f"ends-{in_order}").exists()
    comms.barrier()
    comms.close()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("in_order", [True, False])
def test_store_owner_waits_for_peer_errors_on_success(tmp_path: Path, in_order: bool) -> None:
    """The owner of the store waits for the last messages where nothing went wrong."""
    assert succeeded(on_processes(2, partial(ended, tmp_path, in_order))[0]) == [in_order, True]


def test_the_launcher_that_keeps_the_store_leaves_last(tmp_path: Path) -> None:
    address = {"endpoint": f"127.0.0.1:{free_port()}", "run_id": "run", "min_nodes": 2, "max_nodes": 2}
    machines.make_known()
    launchers = [
        rendezvous_handler_registry.create_handler(RendezvousParameters(machines.BACKEND, **address, rank=rank))
        for rank in range(2)
    ]
    ends = tmp_path / "ends"

    def last_words() -> bool:
        launchers[0].next_rendezvous()
        launchers[0].shutdown()
        return ends.exists()

    with ThreadPoolExecutor() as threads:
        first = threads.submit(last_words)
        launchers[1].next_rendezvous()
        time.sleep(0.5)
        ends.touch()
        launchers[1].shutdown()
        assert first.result(60)
