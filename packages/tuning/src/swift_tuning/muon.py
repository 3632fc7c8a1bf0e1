"""Muon: updates of matrices are their momentum made orthogonal, by the Newton-Schulz iteration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from swift.contracts import Matrix
from swift_tuning.matrices import MatrixOptimizer, at_a_time, is_matrix
from swift_tuning.matrix_sharding import MatrixSharding
from swift_tuning.options import MuonOptions

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial that is iterated: after few steps singular values are near 1 (github.com/KellerJordan/Muon)."""
_LEAST_NORM = 1e-7


class OrthogonalMomentum(MatrixOptimizer):
    """Muon for matrices, under their names on disk; AdamW for all other weights."""

    def __init__(self, groups: list[dict[str, Any]], options: MuonOptions) -> None:
        super().__init__(groups, options, is_matrix)
        self._options = options
        self._dtype: torch.dtype = getattr(torch, options.ns_dtype)

    def updates_of(
        self,
        group: Mapping[str, Any],
        weights: list[torch.Tensor],
        grads: list[torch.Tensor],
        sharding: MatrixSharding,
    ) -> list[torch.Tensor]:
        """Return the momentum of each matrix, made orthogonal where it is whole, instead of the gradients."""
        momentum = self._options.momentum
        held = [self.slot(each, "momentum_buffer") for each in weights]
        for some_held, some_grads in at_a_time(held, grads):
            torch._foreach_lerp_(some_held, some_grads, 1 - momentum)
            if self._options.nesterov:
                torch._foreach_lerp_(some_grads, some_held, momentum)
            else:
                torch._foreach_copy_(some_grads, some_held)
        sharding.update(grads, self._orthogonal)
        return grads

    def _orthogonal(self, matrix: Matrix, whole: torch.Tensor) -> torch.Tensor:
        rows, columns = matrix.shape
        by_shape = math.sqrt(max(1.0, rows / columns))
        if self._options.adjust_lr == "match_rms_adamw":
            by_shape = 0.2 * math.sqrt(max(rows, columns))
        return orthogonal(whole, self._options.ns_steps, self._dtype, by_shape)


def orthogonal(matrix: torch.Tensor, steps: int, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """Return the matrix with all singular values near a scale."""
    first, second, third = _COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    found = wide.to(dtype)
    found = found / found.norm().clamp(min=_LEAST_NORM)
    for _ in range(steps):
        gram = found @ found.T
        polynomial = torch.addmm(gram, gram, gram, beta=second, alpha=third)
        found = torch.addmm(found, polynomial, found, beta=first)
    found = found.to(matrix.dtype).mul_(scale)
    return found.T if matrix.shape[0] > matrix.shape[1] else found
