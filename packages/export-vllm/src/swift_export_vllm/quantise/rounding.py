"""Rounding a weight matrix to a grid, and what becomes of it when its errors are made up for on the way.

Matrices are [outputs, inputs]. `importance` is the diagonal of the inputs' second moments: how much an error in a
column costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

_SHRINKS = torch.linspace(1.0, 0.7, 13)
"""A grid that leaves the largest values out is finer for all others; how far to go is tried."""
_DAMPING = 0.01
_BLOCK = 128


@dataclass(frozen=True)
class Grid:
    """Meaning of a matrix's integers: (integer - zero) * scale."""

    lowest: int
    highest: int
    scales: torch.Tensor
    """[outputs, groups], in the precision in which they are stored."""
    zeros: torch.Tensor | None = None

    def integers(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the nearest ones, [outputs, inputs]."""
        scales, zeros = self._wide(weight.shape[1])
        return (weight / scales + zeros).round().clamp(self.lowest, self.highest)

    def values(self, integers: torch.Tensor) -> torch.Tensor:
        """Return the values of integers, in fp32."""
        scales, zeros = self._wide(integers.shape[1])
        return (integers.float() - zeros) * scales

    def nearest(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the matrix as the grid has it."""
        return self.values(self.integers(weight))

    def _wide(self, inputs: int) -> tuple[torch.Tensor, torch.Tensor | float]:
        each = inputs // self.scales.shape[1]
        scales = self.scales.float().repeat_interleave(each, dim=1)
        return scales, 0.0 if self.zeros is None else self.zeros.float().repeat_interleave(each, dim=1)


def symmetric_grid(
    weight: torch.Tensor, *, bits: int, group: int, importance: torch.Tensor, dtype: torch.dtype, search: bool
) -> Grid:
    """Around zero; with `search`, leaving out as many large values as make the weighted error smallest."""
    highest = 2 ** (bits - 1) - 1
    grouped = weight.reshape(len(weight), -1, group)
    largest = grouped.abs().amax(-1).clamp(min=1e-8) / highest

    def grid(shrink: float) -> Grid:
        return Grid(-highest - 1, highest, (largest * shrink).to(dtype))

    return _best(weight, importance, grid) if search else grid(1.0)


def asymmetric_grid(
    weight: torch.Tensor, *, bits: int, group: int, importance: torch.Tensor, dtype: torch.dtype
) -> Grid:
    """From the lowest to the highest value of a group, zero included."""
    highest = 2**bits - 1
    grouped = weight.reshape(len(weight), -1, group)
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)

    def grid(shrink: float) -> Grid:
        scales = ((high - low) * shrink / highest).clamp(min=1e-8).to(dtype)
        zeros = (-low * shrink / scales.float()).round().clamp(0, highest)
        return Grid(0, highest, scales, zeros)

    return _best(weight, importance, grid)


def _best(weight: torch.Tensor, importance: torch.Tensor, grid: Callable[[float], Grid]) -> Grid:
    """Group by group the best of the grids that `grid` makes of a shrink."""
    chosen: Grid | None = None
    least: torch.Tensor | None = None
    for shrink in _SHRINKS.tolist():
        tried = grid(shrink)
        groups = tried.scales.shape[1]
        cost = ((tried.nearest(weight) - weight) ** 2 * importance).reshape(len(weight), groups, -1).sum(-1)
        if chosen is None or least is None:
            chosen, least = tried, cost
            continue
        better = cost < least
        zeros = None
        if tried.zeros is not None and chosen.zeros is not None:
            zeros = torch.where(better, tried.zeros, chosen.zeros)
        chosen = Grid(tried.lowest, tried.highest, torch.where(better, tried.scales, chosen.scales), zeros)
        least = torch.where(better, cost, least)
    assert chosen is not None
    return chosen


def with_feedback(
    weight: torch.Tensor, moments: torch.Tensor, *, bits: int, group: int, dtype: torch.dtype, search: bool
) -> tuple[torch.Tensor, Grid]:
    """GPTQ: columns are rounded one after the other, and those that follow make up for what the output lost.

    `moments` are the inputs' second moments, [inputs, inputs]. The grid of a group is chosen when its first column
    is reached, from what the columns have become by then; a group lies in one block, or begins with the first column.
    """
    weight = weight.clone()
    importance = torch.diagonal(moments).clone()
    factor = _inverse_factor(moments)
    inputs = weight.shape[1]
    integers = torch.empty_like(weight)
    scales = []
    highest = 2 ** (bits - 1) - 1
    for start in range(0, inputs, _BLOCK):
        end = min(start + _BLOCK, inputs)
        errors = torch.zeros(len(weight), end - start, device=weight.device)
        for column in range(start, end):
            if column % group == 0:
                stretch = slice(column, column + group)
                grid = symmetric_grid(
                    weight[:, stretch],
                    bits=bits,
                    group=group,
                    importance=importance[stretch],
                    dtype=dtype,
                    search=search,
                )
                scales.append(grid.scales)
            scale = scales[-1].float()[:, 0]
            integer = (weight[:, column] / scale).round().clamp(-highest - 1, highest)
            integers[:, column] = integer
            error = (weight[:, column] - integer * scale) / factor[column, column]
            weight[:, column:end] -= error[:, None] * factor[column, column:end]
            errors[:, column - start] = error
        weight[:, end:] -= errors @ factor[start:end, end:]
    grid = Grid(-highest - 1, highest, torch.cat(scales, dim=1))
    return integers, grid


def _inverse_factor(moments: torch.Tensor) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse. More damping where the samples leave directions undetermined."""
    diagonal = torch.diagonal(moments).mean().clamp(min=1e-8)
    for damping in (_DAMPING, 10 * _DAMPING, 100 * _DAMPING):
        damped = moments + damping * diagonal * torch.eye(len(moments), device=moments.device)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if failed == 0:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if failed == 0:
                inverse: torch.Tensor = upper
                return inverse
    return torch.eye(len(moments), device=moments.device)  # plain rounding


def input_scales(
    weights: list[torch.Tensor],
    moments: torch.Tensor,
    magnitudes: torch.Tensor,
    *,
    bits: int,
    group: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """AWQ: by how much to scale each input of these matrices up, so that the output loses least by rounding.

    `magnitudes` are the inputs' mean absolute values. How strongly they count is tried, from not at all.
    """
    best = torch.ones_like(magnitudes)
    least = float("inf")
    for power in torch.linspace(0, 1, 11).tolist():
        scales = magnitudes.clamp(min=1e-4) ** power
        scales = (scales / (scales.max() * scales.min()).sqrt()).clamp(1e-3, 1e3)
        importance = torch.diagonal(moments) / scales**2
        cost = 0.0
        for weight in weights:
            scaled = weight * scales
            grid = asymmetric_grid(scaled, bits=bits, group=group, importance=importance, dtype=dtype)
            lost = grid.nearest(scaled) / scales - weight
            cost += float(((lost @ moments) * lost).sum())
        if cost < least:
            best, least = scales, cost
    return best
