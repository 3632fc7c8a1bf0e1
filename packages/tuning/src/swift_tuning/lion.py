"""Lion, all weights of a group at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from swift_tuning.options import LionOptions


class SignedMomentum(torch.optim.Optimizer):
    """weight ← (1 - lr · decay) · weight - lr · sign(β₁ · m + (1 - β₁) · g), then m ← β₂ · m + (1 - β₂) · g."""

    def __init__(self, groups: list[dict[str, Any]], options: LionOptions) -> None:
        super().__init__(groups, {"betas": (options.beta1, options.beta2)})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as torch's own
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            weights = [each for each in group["params"] if each.grad is not None]
            if not weights:
                continue
            for weight in weights:
                if "exp_avg" not in self.state[weight]:
                    self.state[weight]["exp_avg"] = torch.zeros_like(weight)
            grads = [each.grad for each in weights]
            momenta = [self.state[each]["exp_avg"] for each in weights]
            (beta1, beta2), lr = group["betas"], group["lr"]
            updates = torch._foreach_lerp(grads, momenta, beta1)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
            torch._foreach_add_(weights, updates, alpha=-lr)
            torch._foreach_lerp_(momenta, grads, 1 - beta2)
