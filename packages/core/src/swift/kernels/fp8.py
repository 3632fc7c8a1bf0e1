"""Triton's kernels for products in eight bits: matrices are rounded along and across at once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_TILE = 64
"""Sides of what one program rounds."""
_CHUNK, _CHUNKS = 2048, 4
"""Elements that one program looks at together, and how often it does."""
_LEAST = tl.constexpr(1e-12)
"""Largest values below it are taken for it, as torchao does."""


@triton.jit  # type: ignore[untyped-decorator]
def _largest(
    matrix: tl.tensor, elements: tl.tensor, largest: tl.tensor, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
) -> None:
    found = tl.zeros((CHUNK,), tl.float32)
    start = tl.program_id(0).to(tl.int64) * CHUNK * CHUNKS
    for chunk in tl.static_range(CHUNKS):  # not one after the other: all are asked for at once
        positions = start + chunk * CHUNK + tl.arange(0, CHUNK)
        found = tl.maximum(
            found, tl.abs(tl.load(matrix + positions, mask=positions < elements, other=0.0).to(tl.float32))
        )
    # Numbers that are not negative have the order of their bits.
    tl.atomic_max(largest, tl.max(found, axis=0).to(tl.int32, bitcast=True))


@triton.jit  # type: ignore[untyped-decorator]
def _round(
    matrix: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    largest: tl.tensor,
    along: tl.tensor,
    across: tl.tensor,
    inverse: tl.tensor,
    TOP: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    most = tl.load(largest).to(tl.float32, bitcast=True).to(tl.float64)
    scale = (TOP / tl.maximum(most, _LEAST)).to(tl.float32)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(inverse, 1.0 / scale)
    positions = row[:, None] * columns + column[None, :]
    values = tl.load(matrix + positions, mask=inside, other=0.0).to(tl.float32) * scale
    values = tl.clamp(values, -TOP, TOP, propagate_nan=tl.PropagateNan.ALL)
    tl.store(along + positions, values.to(along.dtype.element_ty), mask=inside)
    # Read and rounded again: where codes are used twice, NVIDIA's assembler mixes up those that it packs into a word.
    row, column = row[None, :], column[:, None]
    inside = (row < rows) & (column < columns)
    values = tl.load(matrix + row * columns + column, mask=inside, other=0.0)
    # The same product to the last bit. A wider one has Triton turn what is read, and not codes, through shared memory.
    if matrix.dtype.element_ty == tl.float32:
        values = (values.to(tl.float64) * scale).to(tl.float32)
    else:
        values = values.to(tl.float32) * scale
    values = tl.clamp(values, -TOP, TOP, propagate_nan=tl.PropagateNan.ALL)
    tl.store(across + column * rows + row, values.to(across.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _add(kept: tl.tensor, found: tl.tensor, elements: tl.tensor, CHUNK: tl.constexpr) -> None:
    positions = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = positions < elements
    total = tl.load(kept + positions, mask=inside) + tl.load(found + positions, mask=inside).to(tl.float32)
    tl.store(kept + positions, total, mask=inside)


def encode(matrix: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a matrix in eight bits, along and across, and what to multiply its codes with."""
    matrix = matrix.contiguous()
    rows, columns = matrix.shape
    largest = torch.zeros((), dtype=torch.int32, device=matrix.device)
    along = torch.empty(rows, columns, dtype=kind, device=matrix.device)
    across = torch.empty(columns, rows, dtype=kind, device=matrix.device)
    inverse = torch.empty((), dtype=torch.float32, device=matrix.device)
    programs = triton.cdiv(matrix.numel(), _CHUNK * _CHUNKS)
    _largest[(programs,)](matrix, matrix.numel(), largest, CHUNK=_CHUNK, CHUNKS=_CHUNKS, num_warps=4)
    _round[(triton.cdiv(rows, _TILE), triton.cdiv(columns, _TILE))](
        matrix, rows, columns, largest, along, across, inverse, TOP=torch.finfo(kind).max, TILE=_TILE, num_warps=4
    )
    return along, across, inverse


def add(kept: torch.Tensor, found: torch.Tensor) -> None:
    """Add what was found, in any precision, to what is kept in fp32."""
    _add[(triton.cdiv(kept.numel(), 2 * _CHUNK),)](kept, found, kept.numel(), CHUNK=2 * _CHUNK, num_warps=8)
