"""The optimizer of `swift_testing.third_party`, as torch has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class TorchMomentum(torch.optim.Optimizer):
    """Keeps one `velocity` for each weight."""

    def __init__(self, groups: list[dict[str, Any]], momentum: float) -> None:
        super().__init__(groups, {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no closure here
        """Update each weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(weight)
                velocity = state["velocity"].mul_(group["momentum"]).add_(weight.grad)
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(velocity, alpha=-group["lr"])
