"""Adam in a space of low rank: GaLore and APOLLO, whose moments are those of a projection of each gradient.

A matrix is updated where it is whole, and what is kept for it stays there: `swift.contracts.StoresMatrixSlots`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch

from swift.contracts import Matrix, Placement
from swift.errors import ConfigError
from swift.toolkit import generator_of
from swift_tuning.matrices import MatrixOptimizer, is_matrix
from swift_tuning.matrix_sharding import MatrixSharding
from swift_tuning.options import ApolloOptions, GaloreOptions, LowRankOptions

Kept = dict[str, torch.Tensor]
"""What is kept for one matrix, by slot."""
_LEAST = 1e-8
_GROWTH = 1.01
"""By which an update of APOLLO may be longer than the one before (Fira's limiter)."""


class LowRankOptimizer(MatrixOptimizer):
    """A rule for the matrices of more rows and columns than the rank; AdamW for all other weights."""

    def __init__(self, groups: list[dict[str, Any]], options: LowRankOptions, rule: LowRankRule) -> None:
        super().__init__(groups, options, partial(_is_projected, options))
        if groups and not any(self._matrices):
            raise ConfigError(
                f"No trained weight can be projected to rank {options.rank}: it takes a linear layer's matrix with "
                "more rows and columns than that, whose name matches optim.targets if that is set.",
                hint="Adapters are too small to project: type --train_type full. Else type a smaller --optim.rank, or "
                "--optim adamw.",
            )
        self._rule = rule
        self._kept: dict[str, Kept] = {}

    def updates_of(
        self,
        group: Mapping[str, Any],
        weights: list[torch.Tensor],
        grads: list[torch.Tensor],
        sharding: MatrixSharding,
    ) -> list[torch.Tensor]:
        """Return the updates instead of the gradients, which nobody reads again."""
        sharding.update(grads, self._updated)
        return grads

    def _updated(self, matrix: Matrix, grad: torch.Tensor) -> torch.Tensor:
        if matrix.name not in self._kept:
            self._kept[matrix.name] = self._rule.start(matrix, grad.device)
        return self._rule.update(matrix, grad, self._kept[matrix.name])

    def matrix_slots(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """Return what is kept for the matrices that this process updates."""
        return {name: self._rule.stored(kept) for name, kept in self._kept.items()}

    def empty_matrix_slots(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """Return the slots of a start."""
        return {matrix.name: self._rule.stored(self._rule.start(matrix, at)) for matrix, at in self._own()}

    def take_matrix_slots(self, slots: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        self._kept = {
            matrix.name: self._rule.restored(dict(slots[matrix.name]), self._rule.start(matrix, at))
            for matrix, at in self._own()
            if matrix.name in slots
        }

    def _own(self) -> list[tuple[Matrix, torch.device]]:
        return [
            (matrix, weights[0].device)
            for weights, sharding in zip(self._matrices, self._shardings, strict=True)
            for matrix in sharding.own()
        ]


class LowRankRule:
    """Base of the rules by which one whole matrix is updated: moments of the projected gradient."""

    def __init__(self, options: LowRankOptions) -> None:
        self.options = options

    def start(self, matrix: Matrix, device: torch.device) -> Kept:
        """Return moments of the projected shape, and how many updates there were: none."""
        rows, columns = matrix.shape
        rank = self.options.rank
        shape = (rows, rank) if self.on_the_right(matrix) else (rank, columns)
        moments = {name: torch.zeros(shape, device=device) for name in ("projected_avg", "projected_avg_sq")}
        return {"updates": torch.zeros(()), **moments}

    def update(self, matrix: Matrix, grad: torch.Tensor, kept: Kept) -> torch.Tensor:
        """Return the update, which is subtracted times the learning rate, and change what is kept."""
        raise NotImplementedError

    def on_the_right(self, matrix: Matrix) -> bool:
        """Return whether columns are projected, and not rows: those of which there are fewer."""
        return matrix.shape[0] >= matrix.shape[1]

    def shape_of_projection(self, matrix: Matrix) -> tuple[int, int]:
        """Return the shape of what gradients are multiplied by: rows of columns, or columns of rows."""
        rows, columns = matrix.shape
        return (self.options.rank, columns) if self.on_the_right(matrix) else (rows, self.options.rank)

    def projected(self, matrix: Matrix, grad: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
        """Return the gradient in the space of low rank."""
        return grad @ projection.T if self.on_the_right(matrix) else projection.T @ grad

    def whole(self, matrix: Matrix, low: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
        """Return what lies in the space of low rank in that of the matrix."""
        return low @ projection if self.on_the_right(matrix) else projection @ low

    def adam(self, low: torch.Tensor, kept: Kept) -> torch.Tensor:
        """Return the step of Adam for a projected gradient without corrections of its bias: m / (√v + ε)."""
        options = self.options
        first, second = kept["projected_avg"], kept["projected_avg_sq"]
        first.lerp_(low, 1 - options.beta1)
        second.mul_(options.beta2).addcmul_(low, low, value=1 - options.beta2)
        kept["updates"] += 1
        return first / second.sqrt().add_(options.eps)

    def correction(self, kept: Kept) -> float:
        """Return the factor for the bias of both moments, after so many updates."""
        count = int(kept["updates"])
        factor: float = math.sqrt(1 - self.options.beta2**count) / (1 - self.options.beta1**count)
        return factor

    def is_due(self, kept: Kept, interval: int) -> bool:
        """Return whether this update begins with another projection."""
        return int(kept["updates"]) % interval == 0

    def stored(self, kept: Kept) -> Kept:
        """Return what is kept as it goes into a checkpoint."""
        return kept

    def restored(self, stored: Kept, kept: Kept) -> Kept:
        """Return what a checkpoint has stored, in the form of what is kept."""
        return stored


class GaloreRule(LowRankRule):
    """GaLore (arXiv:2403.03507): gradients are projected to their first singular vectors, as they once were."""

    def __init__(self, options: GaloreOptions) -> None:
        super().__init__(options)
        self._galore = options

    def on_the_right(self, matrix: Matrix) -> bool:
        """Return the side that the type of the projection says."""
        kind, tall = self._galore.proj_type, super().on_the_right(matrix)
        return {"std": tall, "reverse_std": not tall, "right": True, "left": False}[kind]

    def start(self, matrix: Matrix, device: torch.device) -> Kept:
        """Return room for a projection besides."""
        projection = torch.zeros(self.shape_of_projection(matrix), device=device)
        return {**super().start(matrix, device), "projection": projection}

    def update(self, matrix: Matrix, grad: torch.Tensor, kept: Kept) -> torch.Tensor:
        if self.is_due(kept, self._galore.update_proj_gap):
            kept["projection"].copy_(first_singular_vectors(grad, self.options.rank, right=self.on_the_right(matrix)))
        projection = kept["projection"]
        low = self.adam(self.projected(matrix, grad, projection), kept)
        return self.whole(matrix, low, projection).mul_(self.options.scale * self.correction(kept))


class ApolloRule(LowRankRule):
    """APOLLO (arXiv:2412.05270): what Adam would do to a random projection tells how far each channel goes."""

    def __init__(self, options: ApolloOptions) -> None:
        super().__init__(options)
        self._apollo = options
        self._projections: dict[str, tuple[int, torch.Tensor]] = {}

    def start(self, matrix: Matrix, device: torch.device) -> Kept:
        """Return the length of the last update besides."""
        return {**super().start(matrix, device), "update_norm": torch.zeros((), device=device)}

    def update(self, matrix: Matrix, grad: torch.Tensor, kept: Kept) -> torch.Tensor:
        """Return the gradient, scaled by channel or as a whole."""
        low = self.projected(matrix, grad, self.projection(matrix, int(kept["updates"]), grad.device))
        direction = self.adam(low, kept)
        if self._apollo.scale_type == "tensor":
            update = grad * (direction.norm() / (low.norm() + _LEAST))
        else:
            along = 1 if self.on_the_right(matrix) else 0
            update = grad * (direction.norm(dim=along, keepdim=True) / (low.norm(dim=along, keepdim=True) + _LEAST))
        return self.limited(update, kept).mul_(math.sqrt(self.options.scale) * self.correction(kept))

    def limited(self, update: torch.Tensor, kept: Kept) -> torch.Tensor:
        """Return an update that is not much longer than the one before."""
        norm = update.norm()
        if kept["updates"] > 1:
            limiter = (norm / (kept["update_norm"] + _LEAST)).clamp(min=_GROWTH) / _GROWTH
            update, norm = update / limiter, norm / limiter
        kept["update_norm"].copy_(norm)
        return update

    def projection(self, matrix: Matrix, updates: int, device: torch.device) -> torch.Tensor:
        """Return a draw that depends on the seed, the matrix and the period, and on nothing else."""
        period = updates // self._apollo.update_proj_gap
        if self._projections.get(matrix.name, (-1,))[0] != period:
            generator = generator_of(self._apollo.projection_seed, f"{matrix.name}:{period}")
            projection = torch.randn(self.shape_of_projection(matrix), generator=generator) / math.sqrt(
                self.options.rank
            )
            self._projections[matrix.name] = period, projection.to(device)
        return self._projections[matrix.name][1]


def first_singular_vectors(matrix: torch.Tensor, count: int, *, right: bool) -> torch.Tensor:
    """Return singular vectors as rows (right) or columns (left), whose largest element is positive.

    A decomposition leaves their signs open, and moments outlive the vectors that they were taken along.
    """
    left_vectors, _, right_vectors = torch.linalg.svd(matrix.float(), full_matrices=False)
    found: torch.Tensor = right_vectors[:count] if right else left_vectors[:, :count]
    across = 1 if right else 0
    largest = found.abs().argmax(dim=across, keepdim=True)
    return found * found.gather(across, largest).sign()


def _is_projected(options: LowRankOptions, placement: Placement) -> bool:
    """Return whether a weight is updated in a space of low rank."""
    wide = is_matrix(placement) and all(min(matrix.shape) > options.rank for matrix in placement.matrices)
    return wide and (not options.targets or any(_named(placement.name, target) for target in options.targets))


def _named(name: str, target: str) -> bool:
    """Return whether a pattern means this weight; a word without `*` means those that have it in their name."""
    return fnmatchcase(name, target if "*" in target else f"*{target}*")
