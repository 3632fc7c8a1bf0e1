"""Triton's kernel of AdamW with moments in 8 bits: weight, gradient and codes are read once, and written once.

A code is looked up by the first bits of a number: within the numbers that share them lies one boundary between two
codes at most, so that one comparison decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

_FRACTION = 7
"""Bits of a number's fraction that are looked at."""
_SMALLEST = 32
"""Numbers below two to the minus this are looked up as one."""
_SHIFT = tl.constexpr(23 - _FRACTION)
_BIAS = tl.constexpr(((127 - _SMALLEST) << _FRACTION) - 1)
_KEYS = tl.constexpr((_SMALLEST << _FRACTION) + 2)
_ROWS = 4
"""Blocks that one program updates."""


@dataclass(frozen=True)
class Tables:
    """The values of codes, and what a number's code is found by."""

    levels: torch.Tensor
    middles: torch.Tensor
    """Boundaries between two codes, and one that no number is beyond."""
    first: torch.Tensor
    """The lower of two codes that numbers with the same first bits may have: positive ones, then negative ones."""


@triton.jit  # type: ignore[untyped-decorator]
def _code(values: tl.tensor, first: tl.tensor, middles: tl.tensor) -> tl.tensor:
    bits = values.to(tl.int32, bitcast=True)
    key = tl.maximum(((bits & 0x7FFFFFFF) >> _SHIFT) - _BIAS, 0)
    code = tl.load(first + key + tl.where(values < 0, _KEYS, 0)).to(tl.int32)
    return code + (tl.load(middles + code) < values).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _update(
    weights: tl.tensor,
    gradients: tl.tensor,
    mean_quantized: tl.tensor,
    mean_scales: tl.tensor,
    square_quantized: tl.tensor,
    square_scales: tl.tensor,
    signed_levels: tl.tensor,
    signed_middles: tl.tensor,
    signed_first: tl.tensor,
    levels: tl.tensor,
    middles: tl.tensor,
    first: tl.tensor,
    blocks: tl.tensor,
    beta1: tl.tensor,
    beta2: tl.tensor,
    eps: tl.tensor,
    factor: tl.tensor,
    decay: tl.tensor,
    size: tl.tensor,
    unbias: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_inside = rows < blocks
    positions = rows[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = row_inside[:, None] & (tl.arange(0, BLOCK) < BLOCK)[None, :]
    gradient = tl.load(gradients + positions, mask=inside, other=0.0).to(tl.float32) * factor
    mean = tl.load(signed_levels + tl.load(mean_quantized + positions, mask=inside, other=0).to(tl.int32))
    mean *= tl.load(mean_scales + rows, mask=row_inside, other=0.0)[:, None]
    square = tl.load(levels + tl.load(square_quantized + positions, mask=inside, other=0).to(tl.int32))
    square *= tl.load(square_scales + rows, mask=row_inside, other=0.0)[:, None]
    mean += (1.0 - beta1) * (gradient - mean)
    square = square * beta2 + (1.0 - beta2) * gradient * gradient
    weight = tl.load(weights + positions, mask=inside, other=0.0).to(tl.float32) * decay
    weight += size * (mean / (tl.sqrt(square * unbias) + eps))
    tl.store(weights + positions, weight.to(weights.dtype.element_ty), mask=inside)
    scale = tl.max(tl.abs(mean), axis=1)
    fraction = mean / tl.maximum(scale, 1.1754943508222875e-38)[:, None]
    tl.store(mean_quantized + positions, _code(fraction, signed_first, signed_middles).to(tl.uint8), mask=inside)
    tl.store(mean_scales + rows, scale, mask=row_inside)
    scale = tl.max(square, axis=1)
    fraction = square / tl.maximum(scale, 1.1754943508222875e-38)[:, None]
    tl.store(square_quantized + positions, _code(fraction, first, middles).to(tl.uint8), mask=inside)
    tl.store(square_scales + rows, scale, mask=row_inside)


def update(
    weight: torch.Tensor,
    grad: torch.Tensor,
    moments: tuple[torch.Tensor, ...],
    levels: tuple[torch.Tensor, torch.Tensor],
    *,
    betas: tuple[float, float],
    eps: float,
    factors: tuple[float, float, float, float],
) -> None:
    """Update a weight and its moments in place.

    `moments` are codes and scales of the first, then of the second; `levels` the 256 values of signed codes and of
    others; `factors` those of the gradient, of the weight, of the update, and of the
    second moment before its root.
    """
    blocks = len(moments[1])
    tables = [tables_of(each) for each in levels]
    _update[(triton.cdiv(blocks, _ROWS),)](
        weight,
        grad,
        *moments,
        *(each for table in tables for each in (table.levels, table.middles, table.first)),
        blocks,
        *betas,
        eps,
        *factors,
        ROWS=_ROWS,
        BLOCK=weight.numel() // blocks,
        num_warps=4,
    )


@cache
def tables_of(levels: torch.Tensor) -> Tables:
    """Return the tables for ascending values; the same tensor gives the same tables."""
    middles = (levels[1:] + levels[:-1]) / 2
    keys = torch.arange(_KEYS.value, dtype=torch.int32)
    edges = ((keys + _BIAS.value) << _SHIFT.value).view(torch.float32)  # where numbers with these first bits begin
    edges[0] = 0.0
    after = torch.cat([edges[1:], torch.tensor([2.0])])
    bounds = middles.cpu()
    positive, negative = torch.bucketize(edges, bounds), torch.bucketize(-after, bounds, right=True)
    for low, high in ((positive, torch.bucketize(after, bounds)), (negative, torch.bucketize(-edges, bounds))):
        assert int((high - low).max()) <= 1, "quantized values lie too close to each other"
    beyond = torch.cat([middles, middles.new_full((1,), torch.inf)])
    return Tables(levels, beyond, torch.cat([positive, negative]).to(torch.uint8).to(levels.device))
