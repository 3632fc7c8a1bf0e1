"""The optimizers that core brings, registered through entry points like anyone's. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from swift.config.obstacles import gpu_optimizer, no_bitsandbytes
from swift.config.own_options import AdamOptions, NoOptions
from swift.contracts.optimizer import Reads, Slot

if TYPE_CHECKING:
    import torch

_STEP = Slot("step", "scalar")


class AdamW:
    """torch's AdamW, fused where there is a kernel."""

    options_model = AdamOptions
    reads = Reads.ELEMENTS
    slots = (_STEP, Slot("exp_avg"), Slot("exp_avg_sq"))

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of two moments in fp32."""
        return 8.0

    def make(self, groups: list[dict[str, Any]], options: AdamOptions, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer."""
        import torch

        parameters = [parameter for group in groups for parameter in group["params"]]
        # The fused kernel exists for CPU and CUDA, for floating-point tensors that are all on that device.
        fused = device.type in ("cpu", "cuda") and all(
            parameter.device.type == device.type and parameter.is_floating_point() for parameter in parameters
        )
        return torch.optim.AdamW(groups, betas=(options.beta1, options.beta2), eps=options.eps, fused=fused)


class AdamW8bit:
    """bitsandbytes' AdamW, whose moments are kept in 8 bits with a scale for each block."""

    options_model = AdamOptions
    reads = Reads.BLOCKS
    slots = (
        _STEP,
        *(Slot(f"{part}{moment}", "own") for moment in (1, 2) for part in ("state", "qmap", "absmax")),
    )

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of two moments in 8 bits, each with a scale in fp32 for 256 elements."""
        return 2 * (1 + 4 / 256)

    def make(self, groups: list[dict[str, Any]], options: AdamOptions, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer."""
        try:
            import bitsandbytes
        except ImportError as error:
            raise no_bitsandbytes() from error
        if device.type == "cpu":
            raise gpu_optimizer()
        made: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
            groups, betas=(options.beta1, options.beta2), eps=options.eps
        )
        return made


class Adafactor:
    """torch's Adafactor: the second moment of a matrix as one vector for its rows and one for its columns."""

    options_model = NoOptions
    reads = Reads.ROWS
    slots = (_STEP, Slot("row_var", "own"), Slot("col_var", "own"), Slot("variance", "own"))

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of both vectors, or of the variances of a vector."""
        if len(shape) < 2:
            return 4.0
        return 4.0 * (math.prod(shape[:-1]) + math.prod([*shape[:-2], shape[-1]])) / math.prod(shape)

    def make(self, groups: list[dict[str, Any]], options: NoOptions, device: torch.device) -> torch.optim.Optimizer:
        """Return the optimizer."""
        import torch

        return torch.optim.Adafactor(groups)
