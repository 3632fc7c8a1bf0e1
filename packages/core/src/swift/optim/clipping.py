"""Gradients that are cut to a length, in as few passes over them as it takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from swift.contracts import ScalesGradients

_LEAST = 1e-6
"""What is added to a norm before it divides, as torch does it."""


def clip(parameters: Sequence[torch.nn.Parameter], limit: float, optimizer: torch.optim.Optimizer) -> float:
    """Cut the gradients to a norm of at most `limit`, and return what it was.

    An optimizer that scales gradients itself is told by how much, and gradients that are short enough are left alone.
    """
    norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    known = float(norm)
    factor = min(1.0, limit / (known + _LEAST))
    if isinstance(optimizer, ScalesGradients):
        optimizer.gradient_factor = factor
    elif factor != 1.0:
        clip_grads_with_norm_(parameters, limit, norm)
    return known
