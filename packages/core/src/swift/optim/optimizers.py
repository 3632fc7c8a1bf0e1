"""The optimizers that core brings, registered through entry points like anyone's. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from swift.config.own_options import AdafactorOptions, AdamOptions
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
        import torch

        parameters = [parameter for group in groups for parameter in group["params"]]
        # The fused kernel exists for CPU and CUDA, for floating-point tensors that are all on that device.
        fused = device.type in ("cpu", "cuda") and all(
            parameter.device.type == device.type and parameter.is_floating_point() for parameter in parameters
        )
        return torch.optim.AdamW(groups, betas=(options.beta1, options.beta2), eps=options.eps, fused=fused)


class Adafactor:
    """torch's Adafactor: the second moment of a matrix as one vector for its rows and one for its columns."""

    options_model = AdafactorOptions
    reads = Reads.ROWS
    slots = (_STEP, Slot("row_var", "own"), Slot("col_var", "own"), Slot("variance", "own"))

    def bytes_per_parameter(self, shape: Sequence[int]) -> float:
        """Return the bytes of both vectors, or of the variances of a vector."""
        if len(shape) < 2:
            return 4.0
        return 4.0 * (math.prod(shape[:-1]) + math.prod([*shape[:-2], shape[-1]])) / math.prod(shape)

    def make(
        self, groups: list[dict[str, Any]], options: AdafactorOptions, device: torch.device
    ) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adafactor(
            groups, beta2_decay=options.beta2_decay, eps=(None, options.least_scale), d=options.clip_threshold
        )
