"""Muon: updates of matrices are their momentum made orthogonal, by the Newton-Schulz iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from swift.contracts import Matrix, Placement
from swift.toolkit import MatrixOwners

if TYPE_CHECKING:
    from swift_tuning.options import MuonOptions

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial that is iterated: after few steps singular values are near 1 (github.com/KellerJordan/Muon)."""
_LEAST_NORM = 1e-7


class OrthogonalMomentum(torch.optim.Optimizer):
    """Muon for matrices, under their names on disk; AdamW for all other weights."""

    def __init__(self, groups: list[dict[str, Any]], options: MuonOptions) -> None:
        super().__init__(groups, {})
        self._options = options
        self._dtype: torch.dtype = getattr(torch, options.ns_dtype)
        self._matrices: list[list[torch.Tensor]] = []
        self._others: list[list[torch.Tensor]] = []
        self._owners: list[MatrixOwners] = []
        for group in self.param_groups:
            placed = list(zip(group["params"], group["placements"], strict=True))
            matrices = [(parameter, placement) for parameter, placement in placed if is_matrix(placement)]
            self._matrices.append([parameter for parameter, _ in matrices])
            self._others.append([parameter for parameter, placement in placed if not is_matrix(placement)])
            self._owners.append(MatrixOwners([placement for _, placement in matrices]))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as torch's own
        """Update all parameters. Matrices without a gradient take part, with one of 0: others may hold the rest."""
        for group, matrices, others, owners in zip(
            self.param_groups, self._matrices, self._others, self._owners, strict=True
        ):
            self._update_matrices(group, matrices, owners)
            with_grad = [each for each in others if each.grad is not None and each.numel()]
            if with_grad:
                self._update_others(group, with_grad)

    def _update_matrices(self, group: Mapping[str, Any], weights: list[torch.Tensor], owners: MatrixOwners) -> None:
        if not weights:
            return
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in weights]
        momentum = self._options.momentum
        held = [self._slot(each, "momentum_buffer") for each in weights]
        torch._foreach_lerp_(held, grads, 1 - momentum)
        updates = torch._foreach_lerp(grads, held, momentum) if self._options.nesterov else [m.clone() for m in held]
        owners.update(updates, self._orthogonal)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _orthogonal(self, matrix: Matrix, whole: torch.Tensor) -> torch.Tensor:
        rows, columns = matrix.shape
        by_shape = math.sqrt(max(1.0, rows / columns))
        if self._options.adjust_lr == "match_rms_adamw":
            by_shape = 0.2 * math.sqrt(max(rows, columns))
        return orthogonal(whole, self._options.ns_steps, self._dtype) * by_shape

    def _update_others(self, group: Mapping[str, Any], weights: list[torch.Tensor]) -> None:
        options = self._options
        grads = [each.grad for each in weights if each.grad is not None]
        steps = []
        for weight in weights:
            state = self.state[weight]
            state["step"] = float(state.get("step", 0.0)) + 1.0
            steps.append(state["step"])
        first = [self._slot(each, "exp_avg") for each in weights]
        second = [self._slot(each, "exp_avg_sq") for each in weights]
        torch._foreach_lerp_(first, grads, 1 - options.beta1)
        torch._foreach_mul_(second, options.beta2)
        torch._foreach_addcmul_(second, grads, grads, value=1 - options.beta2)
        divisors = torch._foreach_sqrt(second)
        torch._foreach_div_(divisors, [math.sqrt(1 - options.beta2**step) for step in steps])
        torch._foreach_add_(divisors, options.eps)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        sizes = [-group["lr"] / (1 - options.beta1**step) for step in steps]
        torch._foreach_addcdiv_(weights, first, divisors, sizes)

    def _slot(self, weight: torch.Tensor, name: str) -> torch.Tensor:
        state = self.state[weight]
        if name not in state:
            state[name] = torch.zeros_like(weight)
        kept: torch.Tensor = state[name]
        return kept


def is_matrix(placement: Placement) -> bool:
    """Return whether a weight is updated by its orthogonal momentum: it maps features to features."""
    return not placement.vocabulary and all(len(matrix.shape) == 2 for matrix in placement.matrices)


def orthogonal(matrix: torch.Tensor, steps: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix with all singular values near 1."""
    first, second, third = _COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    found = wide.to(dtype)
    found = found / found.norm().clamp(min=_LEAST_NORM)
    for _ in range(steps):
        gram = found @ found.T
        polynomial = torch.addmm(gram, gram, gram, beta=second, alpha=third)
        found = torch.addmm(found, polynomial, found, beta=first)
    return (found.T if matrix.shape[0] > matrix.shape[1] else found).to(matrix.dtype)
