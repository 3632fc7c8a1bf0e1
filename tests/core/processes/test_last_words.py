"""The process that keeps the store ends after those that still have something to say there."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from processes import on_processes, succeeded

from swift.contracts import World
from swift.processes.comms import Comms
from swift.processes.watchdog import Watchdog


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
def test_who_keeps_the_store_waits_for_last_words_where_nothing_went_wrong(tmp_path: Path, in_order: bool) -> None:
    assert succeeded(on_processes(2, partial(ended, tmp_path, in_order))[0]) == [in_order, True]
