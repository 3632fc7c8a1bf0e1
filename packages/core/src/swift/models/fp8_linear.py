"""torchao's layers in FP8, whose weights are rounded once a step. Can be imported where there is torchao alone.

What `swift.models.step_copies` does for other layers. The numbers are torchao's: what is rounded, with which scale,
and how products add up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated

from swift.kernels import kernels_for
from swift.models.step_gradients import add_gradient, copies_help, weight_of

_MULTIPLE = 16
"""Sums of products have this many summands, or a multiple."""


class Fp8Matrix(NamedTuple):
    """A matrix in eight bits: along its rows, along its columns, and what its codes are multiplied with."""

    along: torch.Tensor
    across: torch.Tensor
    factor: torch.Tensor


class CopyingFloat8Linear(Float8Linear):  # type: ignore[misc]  # torchao has no types
    """torchao's layer, which multiplies with the FP8 copy of its weight while a step has one."""

    copy: Fp8Matrix | None = None

    @torch.no_grad()
    def make_copy(self, _: torch.dtype) -> torch.Tensor:
        """Round the weight, and return the part of it that tells which gradient is meant."""
        self.copy = Fp8Matrix(*_encoded(self.weight, self.config.cast_config_weight.target_dtype))
        return self.copy.along

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        copy = self.copy
        if copy is None or not copies_help(input) or (input.numel() // input.shape[-1]) % _MULTIPLE:
            output: torch.Tensor = super().forward(input)
            return output
        if torch.is_autocast_enabled(input.device.type):
            input = input.to(torch.get_autocast_dtype(input.device.type))
        output = _Product.apply(input, self.weight, *copy, self.config)  # type: ignore[no-untyped-call]  # torch's
        return output if self.bias is None else output + self.bias.to(output.dtype)


def _encoded(matrix: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the parts of `Codes`."""
    if not kernels_for(matrix):
        return _by_operators(matrix, kind)
    if not _kernel_is_right(matrix.device, matrix.dtype, kind):
        return _compiled_operators()(matrix, kind)
    from swift.kernels.fp8 import encode

    return encode(matrix, kind)


def _by_operators(matrix: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = tensor_to_scale(matrix, kind)
    along = to_fp8_saturated(matrix.float() * scale, kind)
    return along, along.t().contiguous(), scale.reciprocal()


@cache
def _compiled_operators() -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    return torch.compile(_by_operators, dynamic=True)


@cache
def _kernel_is_right(device: torch.device, precision: torch.dtype, kind: torch.dtype) -> bool:
    """Try the kernel once. One like it was assembled to code that mixed numbers up silently."""
    from swift.kernels.fp8 import encode

    numbers = torch.randn(208, 1040, generator=torch.Generator(device).manual_seed(0), device=device)
    numbers = (numbers * numbers.abs().roll(1) ** 3).to(precision)
    found, expected = encode(numbers, kind), _by_operators(numbers, kind)
    right = all(
        torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        for one, other in zip(found[:2], expected[:2], strict=True)
    )
    if not right:
        warnings.warn(
            f"The Triton kernel rounds {precision} to {kind} incorrectly on this GPU; using torch operators instead.",
            stacklevel=2,
        )
    return right


@torch.library.custom_op("swift::encode", mutates_args=())
def _encode(matrix: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Do the same in compiled code: layers that multiply the same input share its codes there."""
    return _encoded(matrix, kind)


@_encode.register_fake
def _(matrix: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, columns = matrix.shape
    along, across = (matrix.new_empty(shape, dtype=kind) for shape in ((rows, columns), (columns, rows)))
    return along, across, matrix.new_empty((), dtype=torch.float32)


def _multiplied(
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    left_factor: torch.Tensor,
    right_factor: torch.Tensor,
    precision: torch.dtype,
    emulated: bool,
    fast: bool,
) -> torch.Tensor:
    """Return the product of two matrices of codes: the first with rows, the second with columns that lie together."""
    if emulated:
        return torch.mm(left.float() * left_factor, right.float() * right_factor).to(precision)
    return torch._scaled_mm(
        left, right, scale_a=left_factor, scale_b=right_factor, out_dtype=precision, use_fast_accum=fast
    )


@torch.library.custom_op("swift::linear_backward_8", mutates_args=())
def _backward(
    gradient: torch.Tensor,
    gradient_across: torch.Tensor,
    gradient_factor: torch.Tensor,
    input_across: torch.Tensor,
    input_factor: torch.Tensor,
    along: torch.Tensor,
    across: torch.Tensor,
    factor: torch.Tensor,
    precision: torch.dtype,
    emulated: bool,
    fast_input: bool,
    fast_weight: bool,
) -> torch.Tensor:
    """Return the gradient of a layer's input, and add that of its weight to what the weight has."""
    weight = weight_of(along)
    written = weight.dtype if weight.grad is None else precision  # the first one stays, others are added to it
    factors = {"left_factor": gradient_factor, "right_factor": input_factor}
    found = _multiplied(
        gradient_across, input_across.t(), **factors, precision=written, emulated=emulated, fast=fast_weight
    )
    add_gradient(weight, found)
    factors = {"left_factor": gradient_factor, "right_factor": factor}
    return _multiplied(gradient, across.t(), **factors, precision=precision, emulated=emulated, fast=fast_input)


@_backward.register_fake
def _(gradient: torch.Tensor, *given: Any) -> torch.Tensor:
    across, precision = given[5], given[7]
    return gradient.new_empty((gradient.shape[0], across.shape[0]), dtype=precision)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor,
        along: torch.Tensor,
        across: torch.Tensor,
        factor: torch.Tensor,
        config: Float8LinearConfig,
    ) -> torch.Tensor:
        quantized = Fp8Matrix(*_encode(input.reshape(-1, input.shape[-1]), config.cast_config_input.target_dtype))
        ctx.save_for_backward(quantized.across, quantized.factor, along, across, factor)
        ctx.config, ctx.shape, ctx.precision = config, input.shape, input.dtype
        output = _multiplied(
            quantized.along,
            along.t(),
            left_factor=quantized.factor,
            right_factor=factor,
            precision=input.dtype,
            emulated=config.emulate,
            fast=config.gemm_config_output.use_fast_accum,
        )
        return output.view(*input.shape[:-1], output.shape[-1])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        input_across, input_factor, along, across, factor = ctx.saved_tensors
        config = ctx.config
        kind = config.cast_config_grad_output.target_dtype
        found = _backward(
            *_encode(gradient.reshape(-1, gradient.shape[-1]), kind),
            input_across,
            input_factor,
            along,
            across,
            factor,
            ctx.precision,
            config.emulate,
            config.gemm_config_grad_input.use_fast_accum,
            config.gemm_config_grad_weight.use_fast_accum,
        )
        return found.view(ctx.shape), None, None, None, None, None
