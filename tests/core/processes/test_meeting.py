"""Processes that meet several times at one address, as those of a script do that trains twice."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from processes import on_processes, succeeded

from swift.contracts import World
from swift.errors import ConfigError
from swift.processes.comms import Comms
from swift.processes.group import current_world
from swift.toolkit import join_group, leave_group


def meet_again(*, collected: bool) -> list[list[int]]:
    """Return what every process said at each of three meetings, to which the first process comes late."""
    world, said, left = current_world(), [], []
    for meeting in range(3):
        if meeting and world.rank == 0:
            time.sleep(0.3)  # the other is ahead, and must not take what this one said the last time
        join_group(torch.device("cpu"), world, timeout=timedelta(seconds=20))
        if not collected:
            left.append(dist.group.WORLD)  # as objects of a finished run do that nobody collected yet
        comms = Comms()
        said.append(comms.gather(10 * meeting + world.rank))
        comms.close()
        if world.rank == 0:
            time.sleep(0.3)  # the store that it serves is there a little longer
        leave_group()
    return said


@pytest.mark.parametrize("collected", [True, False])
def test_processes_meet_again_where_they_met(*, collected: bool) -> None:
    (answers,) = on_processes(2, partial(meet_again, collected=collected))
    assert succeeded(answers) == [[[0, 1], [10, 11], [20, 21]]] * 2


def test_a_process_that_does_not_come_is_named() -> None:
    def wait() -> None:
        join_group(torch.device("cpu"), replace(current_world(), size=2), timeout=timedelta(seconds=1))

    ((answer,),) = on_processes(1, wait)
    assert isinstance(answer, ConfigError)
    assert re.match(r"Process 0 of 2 did not meet the others at 127.0.0.1, port \d+: .*\b1\b", answer.message)


def test_unreachable_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"Process 1 of 2 did not meet the others at 127.0.0.1, port 1: "):
        join_group(torch.device("cpu"), World(rank=1, size=2), timeout=timedelta(seconds=0.2))
