"""The processes that the kit runs its cases in."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from swift_testing import crew


@pytest.mark.full
def test_what_the_parent_compiled_does_not_stop_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "PATIENCE", 60.0)

    def compiled(tensor: torch.Tensor) -> torch.Tensor:
        return torch.compile(torch.nn.functional.softplus)(tensor)

    torch.compile(torch.cos)(torch.ones(8))
    (answer,) = crew.succeeded(crew.run_jobs(1, [lambda: compiled(torch.zeros(8)).tolist()])[0])
    assert answer == pytest.approx([0.6931472] * 8)


def test_process_waited_for_reports_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error about a process that does not end shows where it waits."""
    monkeypatch.setattr(crew, "PATIENCE", 3.0)

    def waits() -> None:
        time.sleep(1000)

    with pytest.raises(AssertionError, match=r"process 0 of 2 did not come to an end(.*\n)+.* in waits$"):
        crew.succeeded(crew.run_jobs(2, [waits])[0])


def test_switches_of_later_torch_are_passed_on() -> None:
    """torch 2.14 passes a switch to each group that it makes, which is off."""

    def backend() -> str:
        from torch.distributed import HashStore, distributed_c10d

        made: Any = distributed_c10d.ProcessGroupGloo
        return str(made(HashStore(), 0, 1, timeout=timedelta(seconds=5), enable_reconfigure=False).name())

    (name,) = crew.succeeded(crew.run_jobs(1, [backend])[0])
    assert name == "gloo"


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / os.environ["RANK"]).write_text(str(os.getpid()))
        time.sleep(1000)

    starter = get_context("fork").Process(target=lambda: crew.run_jobs(2, [waits]))
    starter.start()
    written = [tmp_path / "0", tmp_path / "1"]
    _wait_until(lambda: all(each.is_file() and each.read_text() for each in written))
    starter.kill()
    starter.join()
    _wait_until(lambda: not any(Path(f"/proc/{each.read_text()}/cwd").exists() for each in written))


def _wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
