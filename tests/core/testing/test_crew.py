"""The processes that the kit runs its cases in."""

from __future__ import annotations

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
