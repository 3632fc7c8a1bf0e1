"""Schedule-free AdamW (arXiv:2405.15682): gradients are taken between the steps and their running average."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from swift_tuning.options import ScheduleFreeOptions

_TOGETHER = 16 * 2**20
"""Elements that are updated by one call for all of them."""


class ScheduleFreeAdam(torch.optim.Optimizer):
    """Weights are the average x of what Adam's steps make of z; gradients are taken at y = β₁·x + (1 - β₁)·z.

    Between steps the weights are x, which is what is evaluated, saved and exported: core asks for y before a step takes
    its gradients, and `step` ends with x.
    """

    def __init__(self, groups: list[dict[str, Any]], options: ScheduleFreeOptions) -> None:
        super().__init__(groups, {})
        self._options = options
        self._at_gradient = False

    @torch.no_grad()
    def to_gradient_view(self) -> None:
        """Make weights those at which gradients are taken."""
        if not self._at_gradient:
            self._mix(1 - self._options.beta1)
            self._at_gradient = True

    @torch.no_grad()
    def to_weights(self) -> None:
        """Make weights the averages again, where no step has done it."""
        if self._at_gradient:
            self._mix(1 - 1 / self._options.beta1)
            self._at_gradient = False

    def _mix(self, share: float) -> None:
        for group in self.param_groups:
            self._mix_weights(group["params"], share)

    def _mix_weights(self, weights: Iterable[torch.Tensor], share: float) -> None:
        begun = [each for each in weights if "z" in self.state[each]]
        if begun:
            torch._foreach_lerp_(begun, [self.state[each]["z"] for each in begun], share)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as torch's own
        """Update every parameter that has a gradient, which was taken at y."""
        for group in self.param_groups:
            for weights in _parts(group["params"]):
                updated = [each for each in weights if each.grad is not None]
                # Weight decay is that of where the gradient was taken.
                decayed = [each * group["weight_decay"] for each in updated] if group["weight_decay"] else None
                if self._at_gradient:
                    self._mix_weights(weights, 1 - 1 / self._options.beta1)
                if updated:
                    self._update(group, updated, decayed)
        self._at_gradient = False

    def _update(self, group: dict[str, Any], weights: list[torch.Tensor], decayed: list[torch.Tensor] | None) -> None:
        options, lr = self._options, group["lr"]
        for each in weights:
            if "z" not in self.state[each]:
                zeros = torch.zeros_like(each)
                self.state[each].update(z=each.detach().clone(), exp_avg_sq=zeros, step=0.0, weight_sum=0.0, lr_max=0.0)
        grads = [each.grad for each in weights if each.grad is not None]
        second = [self.state[each]["exp_avg_sq"] for each in weights]
        steps_from = [self.state[each]["z"] for each in weights]
        torch._foreach_mul_(second, options.beta2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - options.beta2)
        corrections, fractions = [], []
        for each in weights:
            state = self.state[each]
            state["step"] = float(state["step"]) + 1.0
            state["lr_max"] = max(float(state["lr_max"]), lr)
            counts = state["lr_max"] ** 2
            state["weight_sum"] = float(state["weight_sum"]) + counts
            fractions.append(counts / state["weight_sum"] if state["weight_sum"] else 0.0)
            corrections.append(math.sqrt(1 - options.beta2 ** state["step"]))
        divisors = torch._foreach_sqrt(second)
        torch._foreach_div_(divisors, corrections)
        torch._foreach_add_(divisors, options.eps)
        updates = torch._foreach_div(grads, divisors)
        if decayed is not None:
            torch._foreach_add_(updates, decayed)
        torch._foreach_add_(steps_from, updates, alpha=-lr)
        for each, z, share in zip(weights, steps_from, fractions, strict=True):
            each.lerp_(z, share)


def _parts(weights: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield weights a few at a time: what an update computes of them is never there of all."""
    part: list[torch.Tensor] = []
    for each in weights:
        if part and sum(one.numel() for one in part) + each.numel() > _TOGETHER:
            yield part
            part = []
        part.append(each)
    yield part
