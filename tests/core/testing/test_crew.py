"""The processes that the kit runs its cases in."""

from __future__ import annotations

import time

import pytest
import torch

from swift.testing import crew


def test_what_the_parent_compiled_does_not_stop_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "PATIENCE", 60.0)

    def compiled(tensor: torch.Tensor) -> torch.Tensor:
        return torch.compile(torch.nn.functional.softplus)(tensor)

    torch.compile(torch.cos)(torch.ones(8))
    (answer,) = crew.succeeded(crew.run_jobs(1, [lambda: compiled(torch.zeros(8)).tolist()])[0])
    assert answer == pytest.approx([0.6931472] * 8)


def test_of_a_process_that_is_waited_for_in_vain_it_is_said_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "PATIENCE", 3.0)

    def waits() -> None:
        time.sleep(1000)

    with pytest.raises(AssertionError, match=r"process 0 of 2 did not come to an end(.*\n)+.* in waits$"):
        crew.succeeded(crew.run_jobs(2, [waits])[0])
