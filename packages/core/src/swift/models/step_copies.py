"""Linear layers that cast their weights once a step, and add gradients up in the place where they are kept.

Autocast casts each weight for each micro-batch, and each gradient is written in 16 bits, cast, and added to the sum of
its step: six more passes over all weights. Here a step makes copies of the weights in the precision of the arithmetic,
and on a GPU the product that makes a gradient adds it to the sum in fp32 as it is written. For one process that trains
whole weights: nothing has to be told of a gradient before its step is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

from swift.models.step_gradients import add_gradient, copies_help, forget, remember, weight_of


class CopyingLinear(nn.Linear):
    """A linear layer that multiplies with a copy of its weight while a step has one."""

    copy: Any = None

    def make_copy(self, precision: torch.dtype) -> torch.Tensor:
        """Cast the weight, and return what tells which gradient is meant."""
        self.copy = copy = self.weight.detach().to(precision)
        return copy

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        copy = self.copy
        if copy is None or not copies_help(input):
            return super().forward(input)
        bias = None if self.bias is None else self.bias.to(copy.dtype)
        output: torch.Tensor = _Product.apply(input.to(copy.dtype), self.weight, bias, copy)  # type: ignore[no-untyped-call]  # torch's
        return output


def use_copies(blocks: Iterable[nn.Module]) -> None:
    """Let the linear layers of a model's blocks take copies of their weights; names and weights stay what they are."""
    for module in (module for block in blocks for module in block.modules()):
        if type(module) is nn.Linear:
            module.__class__ = CopyingLinear
        elif type(module).__name__ == "Float8Linear":
            from swift.models.fp8_linear import CopyingFloat8Linear

            module.__class__ = CopyingFloat8Linear


@contextmanager
def weights_cast_once(model: nn.Module, precision: torch.dtype) -> Iterator[None]:
    """Surround the micro-batches of a step: inside, weights do not change."""
    layers: list[Any] = [
        module
        for module in model.modules()
        if hasattr(module, "make_copy") and module.weight.requires_grad and not _is_watched(module.weight)
    ]
    try:
        for layer in layers:
            remember(layer.make_copy(precision), layer.weight)
        yield
    finally:
        for layer in layers:
            layer.copy = None
        forget()


def _is_watched(weight: Any) -> bool:
    """Return whether the gradient of a weight has a hook: it is not called for what is added in place."""
    return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)


def _add_product(weight: nn.Parameter, left: torch.Tensor, right: torch.Tensor) -> None:
    if not _products_in_fp32(left.device, left.dtype):
        add_gradient(weight, left @ right)
    elif weight.grad is None:
        weight.grad = torch.ops.aten.mm.dtype(left, right, weight.dtype)
    else:
        torch.ops.aten.addmm.dtype_out(weight.grad, left, right, weight.dtype, out=weight.grad)


@cache
def _products_in_fp32(device: torch.device, precision: torch.dtype) -> bool:
    """Return whether torch writes products of 16 bits in fp32 there, and adds them to what is there."""
    some, kept = torch.ones(16, 16, dtype=precision, device=device), torch.ones(16, 16, device=device)
    try:
        torch.ops.aten.addmm.dtype_out(kept, some, some, kept.dtype, out=kept)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return bool((kept == 17).all())


@torch.library.custom_op("swift::linear_backward", mutates_args=())
def _backward(gradient: torch.Tensor, input: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a layer's input, and add that of its weight to what the weight has.

    One operator, so that no compiler leaves out what it sees no use of.
    """
    rows = gradient.reshape(-1, gradient.shape[-1])
    _add_product(weight_of(copy), rows.t(), input.reshape(-1, input.shape[-1]))
    return (rows @ copy).view(input.shape)


@_backward.register_fake
def _(gradient: torch.Tensor, input: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, copy: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(input, copy)
        ctx.biased = bias is not None
        return nn.functional.linear(input, copy, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        input, copy = ctx.saved_tensors
        bias = gradient.reshape(-1, gradient.shape[-1]).sum(0) if ctx.biased else None
        return _backward(gradient, input, copy), None, bias, None
