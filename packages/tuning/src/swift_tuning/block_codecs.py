"""Moments of Adam in 8 or 4 bits: a code for each element, and a scale for each block of consecutive elements.

What was encoded once is encoded to the same codes again, so that a checkpoint in fp32 resumes to the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch

from swift.toolkit import kernels_for

_PART = 256 * 1024
"""Elements of a weight that are updated at once where the kernel makes copies in fp32 of all that it is given."""
_BLOCKS = 64 * 1024
"""Blocks that are encoded at once: on the way a code has eight bytes."""


@dataclass(frozen=True)
class Moments:
    """Codes and scales of one moment."""

    quantized: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True)
class AdamStep:
    """The numbers of one update."""

    step: int
    """Counted from 1."""
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    gradient_factor: float = 1.0

    def scaled(self, grad: torch.Tensor) -> torch.Tensor:
        return grad if self.gradient_factor == 1.0 else grad * self.gradient_factor

    @property
    def factors(self) -> tuple[float, float, float, float]:
        """Return those of the gradient, of the weight, of the update, and of the second moment before its root."""
        size = -self.lr / (1 - self.betas[0] ** self.step)
        return self.gradient_factor, 1 - self.lr * self.weight_decay, size, 1 / (1 - self.betas[1] ** self.step)


class BlockCodec:
    """Codes of the nearest among a few values, ascending from -1 or 0 to 1, times the largest element of a block."""

    block: ClassVar[int]

    def levels(self, signed: bool, device: torch.device) -> torch.Tensor:
        """Return the values of the codes."""
        raise NotImplementedError

    def zeros(self, elements: int, *, signed: bool, device: torch.device) -> Moments:
        """Return what `encode` makes of as many zeros, which are a multiple of the block, with nothing in fp32."""
        one = self.encode(torch.zeros(self.block, device=device), signed=signed)
        return Moments(one.quantized.repeat(elements // self.block), one.scales.repeat(elements // self.block))

    def encode(self, values: torch.Tensor, *, signed: bool) -> Moments:
        """Return the codes of a tensor whose size is a multiple of the block."""
        blocks = torch.split(values.reshape(-1, self.block), _BLOCKS)
        parts = [self._encode(part, signed=signed) for part in blocks]
        return Moments(torch.cat([part.quantized for part in parts]), torch.cat([part.scales for part in parts]))

    def _encode(self, blocks: torch.Tensor, *, signed: bool) -> Moments:
        levels = self.levels(signed, blocks.device)
        scales = blocks.abs().amax(dim=1)
        fractions = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
        quantized = torch.bucketize(fractions, (levels[1:] + levels[:-1]) / 2)
        return Moments(self.packed(quantized.to(torch.uint8).view(-1)), scales)

    def decode(self, moments: Moments, *, signed: bool) -> torch.Tensor:
        """Return the numbers in fp32, flat."""
        values = self.levels(signed, moments.quantized.device)[self.unpacked(moments.quantized).int()]
        return (values.view(-1, self.block) * moments.scales.unsqueeze(1)).view(-1)

    def packed(self, quantized: torch.Tensor) -> torch.Tensor:
        """Return codes as they are kept."""
        return quantized

    def unpacked(self, quantized: torch.Tensor) -> torch.Tensor:
        """Return a code for each element."""
        return quantized

    def update(
        self, weight: torch.Tensor, grad: torch.Tensor, first: Moments, second: Moments, hyper: AdamStep
    ) -> None:
        """Update a weight and its moments in place."""
        flat, mean, square = (
            hyper.scaled(grad).reshape(-1),
            self.decode(first, signed=True),
            self.decode(second, signed=False),
        )
        mean.lerp_(flat, 1 - hyper.betas[0])
        square.mul_(hyper.betas[1]).addcmul_(flat, flat, value=1 - hyper.betas[1])
        adam(weight, mean.view_as(weight), square.view_as(weight), hyper)
        for kept, values, signed in ((first, mean, True), (second, square, False)):
            again = self.encode(values, signed=signed)
            kept.quantized.copy_(again.quantized)
            kept.scales.copy_(again.scales)


class FourBits(BlockCodec):
    """Two codes a byte, 128 elements a scale; the values of codes follow torchao's, whose kernels need a compiler."""

    block = 128
    _SIGNED = (
        *(-1.0, -0.6625, -0.4375, -0.2125, -0.0775, -0.0325, -0.0055, 0.0),
        *(0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625, 0.8875, 1.0),
    )

    def levels(self, signed: bool, device: torch.device) -> torch.Tensor:
        """Return 16 values; those of second moments have no 0, by which an update would be divided."""
        return torch.tensor(self._SIGNED, device=device) if signed else torch.linspace(0, 1, 17, device=device)[1:]

    def packed(self, quantized: torch.Tensor) -> torch.Tensor:
        return (quantized[::2] << 4) | quantized[1::2]

    def unpacked(self, quantized: torch.Tensor) -> torch.Tensor:
        return torch.stack([quantized >> 4, quantized & 15], dim=1).view(-1)


class EightBits(BlockCodec):
    """bitsandbytes' codes and kernels, 256 elements a scale."""

    block = 256

    def levels(self, signed: bool, device: torch.device) -> torch.Tensor:
        """Return 256 values, closer to each other near 0."""
        return _dynamic_levels(signed, device)

    def update(
        self, weight: torch.Tensor, grad: torch.Tensor, first: Moments, second: Moments, hyper: AdamStep
    ) -> None:
        """Update a weight and its moments in place, by one fused kernel; on a CPU it is not fused, and takes parts."""
        gradients, weights = grad.reshape(-1), weight.view(-1)
        if kernels_for(weight):  # bitsandbytes' own waits for its search among the codes
            from swift_tuning.adam_8bit_kernel import update

            levels = _dynamic_levels(True, weight.device), _dynamic_levels(False, weight.device)
            moments = first.quantized, first.scales, second.quantized, second.scales
            update(weights, gradients, moments, levels, betas=hyper.betas, eps=hyper.eps, factors=hyper.factors)
            return
        gradients = hyper.scaled(gradients)
        part = weights.numel() if weight.device.type != "cpu" else _PART
        for start in range(0, weights.numel(), part):
            elements = slice(start, start + part)
            blocks = slice(start // self.block, (start + part) // self.block)
            torch.ops.bitsandbytes.optimizer_update_8bit_blockwise(
                "adam",
                gradients[elements],
                weights[elements],
                first.quantized[elements],
                second.quantized[elements],
                *hyper.betas,
                0.0,
                0.0,
                hyper.eps,
                hyper.step,
                hyper.lr,
                _dynamic_levels(True, weight.device),
                _dynamic_levels(False, weight.device),
                first.scales[blocks],
                second.scales[blocks],
                hyper.weight_decay,
                1.0,
                False,
            )


def eight_bits() -> EightBits:
    """Return the codec of 8 bits."""
    import bitsandbytes  # noqa: F401  # registers the kernels

    return EightBits()


def adam(weight: torch.Tensor, mean: torch.Tensor, square: torch.Tensor, hyper: AdamStep) -> None:
    """Update a weight in place by moments that have seen its gradient, as torch.optim.AdamW does."""
    _, decay, size, _ = hyper.factors
    weight.mul_(decay)
    unbiased = square.div(1 - hyper.betas[1] ** hyper.step).sqrt_().add_(hyper.eps)
    weight.addcdiv_(mean, unbiased, value=size)


@cache
def _dynamic_levels(signed: bool, device: torch.device) -> torch.Tensor:
    from bitsandbytes.functional import create_dynamic_map

    levels: torch.Tensor = create_dynamic_map(signed=signed).clone()
    if signed:
        levels[0] = -1.0  # else the largest element of a block shrinks each time that it is stored and read
    return levels.to(device)
