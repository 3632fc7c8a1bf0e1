"""Base of optimizers that update whole matrices, under their names on disk, and all other weights as AdamW does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.sgd import sgd

from swift.config.own_options import AdamOptions
from swift.contracts import Placement
from swift_tuning.matrix_sharding import MatrixSharding


class MatrixOptimizer(torch.optim.Optimizer):
    """A subclass says which weights are matrices to it, and how they are updated."""

    def __init__(self, groups: list[dict[str, Any]], adam: AdamOptions, takes: Callable[[Placement], bool]) -> None:
        super().__init__(groups, {})
        self._adam = adam
        self._matrices: list[list[torch.Tensor]] = []
        self._others: list[list[torch.Tensor]] = []
        self._shardings: list[MatrixSharding] = []
        for group in self.param_groups:
            placed = list(zip(group["params"], group["placements"], strict=True))
            matrices = [(parameter, placement) for parameter, placement in placed if takes(placement)]
            self._matrices.append([parameter for parameter, _ in matrices])
            self._others.append([parameter for parameter, placement in placed if not takes(placement)])
            self._shardings.append(MatrixSharding([placement for _, placement in matrices]))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as torch's own
        """Update all parameters. Matrices without a gradient take part, with one of 0: others may hold the rest."""
        for group, matrices, others, sharding in zip(
            self.param_groups, self._matrices, self._others, self._shardings, strict=True
        ):
            if matrices:
                grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in matrices]
                updates = self.updates_of(group, matrices, grads, sharding)
                subtract(matrices, updates, lr=group["lr"], weight_decay=group["weight_decay"])
            with_grad = [each for each in others if each.grad is not None and each.numel()]
            if with_grad:
                self._update_others(group, with_grad)

    def updates_of(
        self,
        group: Mapping[str, Any],
        weights: list[torch.Tensor],
        grads: list[torch.Tensor],
        sharding: MatrixSharding,
    ) -> list[torch.Tensor]:
        """Return this process's parts of the updates, which are subtracted times the learning rate."""
        raise NotImplementedError

    def _update_others(self, group: Mapping[str, Any], weights: list[torch.Tensor]) -> None:
        adam = self._adam
        grads = [each.grad for each in weights if each.grad is not None]
        steps = []
        for weight in weights:
            state = self.state[weight]
            state["step"] = float(state.get("step", 0.0)) + 1.0
            steps.append(state["step"])
        first = [self.slot(each, "exp_avg") for each in weights]
        second = [self.slot(each, "exp_avg_sq") for each in weights]
        torch._foreach_lerp_(first, grads, 1 - adam.beta1)
        torch._foreach_mul_(second, adam.beta2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - adam.beta2)
        divisors = torch._foreach_sqrt(second)
        torch._foreach_div_(divisors, [math.sqrt(1 - adam.beta2**step) for step in steps])
        torch._foreach_add_(divisors, adam.eps)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        sizes = [-group["lr"] / (1 - adam.beta1**step) for step in steps]
        torch._foreach_addcdiv_(weights, first, divisors, sizes)

    def slot(self, weight: torch.Tensor, name: str) -> torch.Tensor:
        """Return what is kept for a weight under a name, which begins as zeros."""
        state = self.state[weight]
        if name not in state:
            state[name] = torch.zeros_like(weight)
        kept: torch.Tensor = state[name]
        return kept


def subtract(weights: list[torch.Tensor], updates: list[torch.Tensor], *, lr: float, weight_decay: float) -> None:
    """Shrink weights by the learning rate times their decay, and take updates times the learning rate from them."""
    # Which is what torch's SGD does in one pass, where the update is its gradient: w - lr * (u + decay * w).
    sgd(
        weights,
        updates,
        [None] * len(weights),
        lr=lr,
        weight_decay=weight_decay,
        momentum=0.0,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        fused=all(each.device.type in ("cpu", "cuda") for each in weights),
    )


def at_a_time(*lists: list[torch.Tensor]) -> Iterator[tuple[list[torch.Tensor], ...]]:
    """Yield tensors of several lists one by one on a CPU, whose cache holds one; elsewhere all, for one kernel."""
    if lists[0][0].device.type == "cpu":
        yield from (tuple([each] for each in row) for row in zip(*lists, strict=True))
    else:
        yield lists


def is_matrix(placement: Placement) -> bool:
    """Return whether a weight maps features to features, so that it is more than a table of vectors."""
    return not placement.vocabulary and all(len(matrix.shape) == 2 for matrix in placement.matrices)
