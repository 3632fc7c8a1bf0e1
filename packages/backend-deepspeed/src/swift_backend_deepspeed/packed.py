"""Quantised weights under ZeRO 3: partitioned as soon as they are read, gathered for each product.

bitsandbytes stores a matrix as packed elements and a few scales. ZeRO 3 partitions the packed elements as it does any
parameter, bit for bit; every process keeps the scales. The elements have the type of the other weights, so that
DeepSpeed gathers all of a layer at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from swift.contracts import Run
from swift_backend_deepspeed.topology import engine_config


def partition_when_read(run: Run) -> Callable[[nn.Parameter], None]:
    """Return what partitions a quantised weight: no process ever holds two whole ones."""
    from deepspeed import zero

    config, compute = engine_config(run)
    init = zero.Init(config_dict_or_path=config, dtype=compute)

    def placer(weight: nn.Parameter) -> None:
        if hasattr(weight, "CB"):
            weight.CB = None  # bitsandbytes' second name for the same memory
        init._convert_to_zero_parameters([weight])

    return placer


def multiply_gathered(model: nn.Module) -> None:
    """Make quantised layers forget a gathered weight after each product, and use it as it is in the backward pass."""
    import bitsandbytes

    for module in model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit | bitsandbytes.nn.Linear8bitLt):
            module.forward = partial(_multiply, _PackedLayer(module))


def _multiply(layer: _PackedLayer, inputs: torch.Tensor) -> Any:
    return _Product.apply(inputs, layer)  # type: ignore[no-untyped-call]  # torch's


class _PackedLayer:
    """A layer of bitsandbytes whose weight is there while DeepSpeed has gathered it."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._forward = layer.forward
        self._scales = getattr(layer.weight, "SCB", None)
        """Of 8 bits; scales of 4 bits stay with the weight."""

    def product(self, inputs: torch.Tensor) -> torch.Tensor:
        """Multiply by bitsandbytes' own kernel."""
        if self._scales is None:
            return self._forward(inputs)  # type: ignore[no-any-return]
        state = self._layer.state
        state.CB, state.SCB = self._layer.weight.data, self._scales
        try:
            return self._forward(inputs)  # type: ignore[no-any-return]
        finally:
            state.CB = None

    def matrix(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight in full precision."""
        from bitsandbytes.functional import dequantize_4bit

        weight = self._layer.weight
        if self._scales is None:
            return dequantize_4bit(weight.data, weight.quant_state).to(dtype)  # type: ignore[no-any-return]
        return weight.data.to(dtype).mul_(self._scales.unsqueeze(1).mul(1.0 / 127.0))  # type: ignore[no-any-return]


class _Product(torch.autograd.Function):
    """A product that looks at the weight anew in the backward pass.

    bitsandbytes' own keeps the gathered elements until then: every process would hold all layers at once.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, layer: _PackedLayer) -> torch.Tensor:
        ctx.layer = layer
        return layer.product(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient @ ctx.layer.matrix(gradient.dtype), None
