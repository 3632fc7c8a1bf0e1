"""A few layers that optimizers of swift and of others update, step by step, in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swift.config.sections import OptimSection, TunerSection
from swift.optim.build import build_optimizer, parameter_groups, set_learning_rate
from swift.optim.placements import add_placements

STEPS = 6


class Layer(torch.nn.Module):
    """Matrices of both shapes, a vector, an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(16, 256)
        self.up = torch.nn.Linear(256, 512)
        self.down = torch.nn.Linear(512, 256, bias=False)
        self.lm_head = torch.nn.Linear(256, 16, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.down(torch.tanh(self.up(self.embed(ids)))))


def layer() -> Layer:
    torch.manual_seed(0)
    return Layer()


def trained(model: Layer, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    ids = torch.arange(16)
    for step in range(STEPS):
        set_learning_rate(optimizer, 1e-2 * (1 - step / STEPS))
        torch.nn.functional.cross_entropy(model(ids), ids.roll(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def of_swift(name: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Layer, torch.optim.Optimizer]:
    model = layer()
    optim = OptimSection.model_validate({"name": name, "weight_decay": 0.1, **options})
    groups = parameter_groups(model.named_parameters(), optim, TunerSection(kind="full"))
    pieces = "swift.optim.placements.canonical_parameters"  # of a model of transformers, which this is not
    monkeypatch.setattr(pieces, lambda model: (([_Piece(n, p)], p) for n, p in model.named_parameters()))
    add_placements(groups, model)
    return model, build_optimizer(groups, optim, 1e-2, "cpu")


class _Piece:
    def __init__(self, name: str, parameter: torch.Tensor) -> None:
        self.name, self.start, self.shape = name, 0, tuple(parameter.shape)


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], *, rtol: float = 1e-5) -> None:
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name], rtol=rtol, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


class Together(torch.optim.Optimizer):
    """Two optimizers of torch, for parts of a model."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:  # type: ignore[override]
        for part in self.parts:
            part.zero_grad()
