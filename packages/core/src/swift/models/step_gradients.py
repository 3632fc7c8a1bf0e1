"""Gradients of the weights of which a step has copies: which weight is meant, and where its gradient goes."""

from __future__ import annotations

import torch
from torch import nn

from swift.kernels import kernels_for

_WEIGHTS: dict[int, nn.Parameter] = {}
"""The weights of the step that runs, by the address of their copies: compiled code passes tensors of its own."""


def remember(copy: torch.Tensor, weight: nn.Parameter) -> None:
    """Note of which weight a copy was made, until `forget`."""
    _WEIGHTS[copy.data_ptr()] = weight


def forget() -> None:
    """Let go of all weights: the step has its gradients."""
    _WEIGHTS.clear()


def weight_of(copy: torch.Tensor) -> nn.Parameter:
    """Return the weight that a copy was made of."""
    return _WEIGHTS[copy.data_ptr()]


def copies_help(input: torch.Tensor) -> bool:
    """Return whether a backward pass will come that asks for the gradient of a layer's input.

    With that one it makes the gradient of the weight.
    """
    return torch.is_grad_enabled() and input.requires_grad


def add_gradient(weight: nn.Parameter, found: torch.Tensor) -> None:
    """Add to the gradient of a weight what a micro-batch found, in any precision."""
    if weight.grad is None:
        weight.grad = found.to(weight.dtype)
    elif kernels_for(found) and weight.grad.is_contiguous():
        from swift.kernels.fp8 import add

        add(weight.grad, found)
    else:
        weight.grad.add_(found)
