"""Triton's kernels for rows of logits: their statistics in one reading, and their gradient in their own place.

What `logps_autograd` does with a dozen operators in fp32, for the views that all of training asks for: logits stay in
the precision of the product, and nothing of their size is made next to them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096
"""Logits of a row that are looked at together."""


@triton.jit  # type: ignore[untyped-decorator]
def _statistics(
    logits: tl.tensor,
    stride: tl.tensor,
    targets: tl.tensor,
    scale: tl.tensor,
    vocabulary: tl.constexpr,
    largest: tl.tensor,
    total: tl.tensor,
    at_target: tl.tensor,
    hits: tl.tensor,
    sums: tl.tensor,
    surprise: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    columns = tl.arange(0, BLOCK)
    top = tl.full((), float("-inf"), tl.float32)
    best = tl.full((), -1, tl.int32)
    mass = tl.zeros((), tl.float32)
    plain = tl.zeros((), tl.float32)
    weighted = tl.zeros((), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        inside = start + columns < vocabulary
        z = tl.load(logits + start + columns, mask=inside, other=0.0).to(tl.float32) * scale
        plain += tl.sum(z, axis=0)
        z = tl.where(inside, z, float("-inf"))
        highest, index = tl.max(z, axis=0, return_indices=True)
        best = tl.where(highest > top, start + index, best)
        new = tl.maximum(top, highest)
        less = z - new
        likely = tl.exp(less)
        shrink = tl.exp(top - new)
        moved = tl.where(mass > 0, weighted + mass * (top - new), 0.0)
        weighted = shrink * moved + tl.sum(tl.where(likely > 0, likely * less, 0.0), axis=0)
        mass = mass * shrink + tl.sum(likely, axis=0)
        top = new
    target = tl.load(targets + row)
    tl.store(largest + row, top)
    tl.store(total + row, mass)
    tl.store(at_target + row, tl.load(logits + target).to(tl.float32) * scale)
    tl.store(hits + row, tl.where(best == target, 1.0, 0.0))
    tl.store(sums + row, plain)
    tl.store(surprise + row, weighted)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient(
    logits: tl.tensor,
    stride: tl.tensor,
    targets: tl.tensor,
    scale: tl.tensor,
    vocabulary: tl.constexpr,
    normalisers: tl.tensor,
    shrink: tl.tensor,
    added: tl.tensor,
    spread: tl.tensor,
    entropy: tl.tensor,
    WITH_SPREAD: tl.constexpr,
    WITH_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocabulary
    logits += row * stride + columns
    logp = tl.load(logits, mask=inside, other=0.0).to(tl.float32) * scale - tl.load(normalisers + row)
    factor = tl.load(shrink + row)
    if WITH_ENTROPY:
        factor -= tl.load(entropy + row) * logp
    gradient = tl.exp(logp) * factor
    gradient += tl.where(columns == tl.load(targets + row), tl.load(added + row), 0.0)
    if WITH_SPREAD:
        gradient += tl.load(spread + row)
    tl.store(logits, (gradient * scale).to(logits.dtype.element_ty), mask=inside)


def statistics(logits: torch.Tensor, targets: torch.Tensor, scale: float) -> tuple[torch.Tensor, ...]:
    """Return six values in fp32 of each row of logits [tokens, vocabulary] times `scale`.

    The largest, the sum of e = exp(value - largest), the target's, whether that is the first of the largest ones, the
    sum of all, and the sum of e log e.
    """
    tokens, vocabulary = logits.shape
    results = tuple(torch.empty(tokens, dtype=torch.float32, device=logits.device) for _ in range(6))
    if tokens:
        _statistics[(tokens,)](
            logits, logits.stride(0), targets, scale, vocabulary, *results, BLOCK=_BLOCK, num_warps=8
        )
    return results


def to_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    scale: float,
    normalisers: torch.Tensor,
    shrink: torch.Tensor,
    added: torch.Tensor,
    spread: torch.Tensor | None,
    entropy: torch.Tensor | None,
) -> None:
    """Overwrite logits with the gradient of what they were before `scale`; see `logps_autograd._Pull` for the words."""
    tokens, vocabulary = logits.shape
    if not tokens:
        return
    rows = [each.contiguous() for each in (normalisers, shrink, added)]
    optional = [rows[0] if each is None else each.contiguous() for each in (spread, entropy)]
    _gradient[(tokens, triton.cdiv(vocabulary, _BLOCK))](
        logits,
        logits.stride(0),
        targets,
        scale,
        vocabulary,
        *rows,
        *optional,
        WITH_SPREAD=spread is not None,
        WITH_ENTROPY=entropy is not None,
        BLOCK=_BLOCK,
        num_warps=8,
    )
