"""Stochastic gradient descent, whose weight decay is no part of the gradient: as that of all optimizers here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from swift_tuning.options import SgdOptions


class DecoupledSgd(torch.optim.SGD):
    """torch's SGD after weights were decayed by themselves."""

    def __init__(self, groups: list[dict[str, Any]], options: SgdOptions) -> None:
        decays = [group["weight_decay"] for group in groups]
        plain = [{**group, "weight_decay": 0.0} for group in groups]
        super().__init__(plain, momentum=options.momentum, nesterov=options.nesterov)
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["decoupled_decay"] = decay

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as torch's own
        """Decay weights, then update every parameter that has a gradient."""
        for group in self.param_groups:
            weights = [each for each in group["params"] if each.grad is not None]
            if weights and group["decoupled_decay"]:
                torch._foreach_mul_(weights, 1 - group["lr"] * group["decoupled_decay"])
        super().step()
