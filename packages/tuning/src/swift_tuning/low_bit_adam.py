"""AdamW with low-bit moments, and which resumes anywhere, as plain AdamW too.

The whole weight decides whether its moments are low-bit: where its rows are cut into whole blocks. Blocks of
a part are then those of the whole, so that every layout computes the same numbers. A checkpoint has AdamW's own
moments, in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from swift.contracts import Placement
from swift.errors import ConfigError
from swift_tuning.block_codecs import AdamStep, BlockCodec, Moments, adam
from swift_tuning.optimizers import low_bit

_MOMENTS = (("exp_avg", True), ("exp_avg_sq", False))
"""Slot, and whether it has negative values."""


class QuantisedAdamW(torch.optim.Optimizer):
    """AdamW with low-bit moments; of vectors, and of rows that are no whole blocks, in fp32."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        codec: BlockCodec,
        *,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__(groups, {"betas": betas, "eps": eps})
        self.gradient_factor = 1.0
        """What gradients are multiplied by, as `swift.contracts.ScalesGradients` has it."""
        self._codec = codec
        self._few = {
            parameter: _in_low_bit(placement, codec.block)
            for group in self.param_groups
            for parameter, placement in zip(group["params"], group["placements"], strict=True)
        }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # as torch's own
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.numel():
                    self._update(parameter, parameter.grad.float(), group)

    def _update(self, parameter: torch.Tensor, grad: torch.Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            self._begin(parameter, state)
        state["step"] += 1
        hyper = AdamStep(
            state["step"], group["lr"], group["betas"], group["eps"], group["weight_decay"], self.gradient_factor
        )
        first, second = state["exp_avg"], state["exp_avg_sq"]
        if self._few[parameter]:
            self._codec.update(parameter, grad.contiguous(), first, second, hyper)
            return
        grad = hyper.scaled(grad)
        first.lerp_(grad, 1 - hyper.betas[0])
        second.mul_(hyper.betas[1]).addcmul_(grad, grad, value=1 - hyper.betas[1])
        adam(parameter, first, second, hyper)

    def _begin(self, parameter: torch.Tensor, state: dict[str, Any]) -> None:
        state["step"] = 0
        for name, signed in _MOMENTS:
            if self._few[parameter]:
                state[name] = self._codec.zeros(parameter.numel(), signed=signed, device=parameter.device)
            else:
                state[name] = torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.contiguous_format)

    def slot_values(self, parameter: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return AdamW's slots in fp32: what was low-bit on the CPU, since the device may have no room for it."""
        state = self.state.get(parameter)
        if not state:
            return {}
        values = {"step": torch.tensor(float(state["step"]))}
        for name, signed in _MOMENTS:
            held = state[name]
            if isinstance(held, Moments):
                held = self._codec.decode(held, signed=signed).view(parameter.shape).cpu()
            values[name] = held
        return values

    def take_slots(self, parameter: torch.Tensor, values: Mapping[str, torch.Tensor]) -> None:
        state = self.state[parameter]
        state["step"] = int(values["step"])
        for name, signed in _MOMENTS:
            value = values[name].to(parameter.device, torch.float32)
            state[name] = self._codec.encode(value, signed=signed) if self._few[parameter] else value.clone()


def _in_low_bit(placement: Placement, block: int) -> bool:
    if not low_bit(placement.shape, block):
        return False
    columns = placement.region[-1]
    if columns.start % block or columns.stop % block:
        raise ConfigError(
            f"Low-bit moments have one scale per {block} elements of a row, but the layout splits rows of "
            f"{placement.name} within such a block (this rank has elements {columns.start} to {columns.stop}).",
            hint="Type --optim.name adamw, or reduce --parallel.tp.",
        )
    return True
