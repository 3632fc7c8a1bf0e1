"""The base of Transformer Engine's modules, and its norms."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swift_backend_megatron.cpu.unsupported import refuse


def mappings() -> Any:
    """Return megatron-core's collectives with gradients; it is importable only after this package is installed."""
    from megatron.core.tensor_parallel import mappings

    return mappings


def gathered(x: Tensor, group: Any) -> Tensor:
    """Gather shards of all processes along the first dimension; gradients are summed and scattered."""
    gather = mappings().gather_from_sequence_parallel_region
    return gather(x.contiguous(), tensor_parallel_output_grad=True, group=group)  # type: ignore[no-any-return]


class TransformerEngineBaseModule(nn.Module):
    """Base class of all modules of Transformer Engine."""

    def __init__(self, tp_group: Any = None) -> None:
        super().__init__()
        self.tp_group = tp_group
        self.fp8 = self.fp8_calibration = self.fp8_initialized = False
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "fp8_group": None, "recipe": None}

    def init_fp8_metadata(self, num_gemms: int = 1) -> None: ...

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        self.tp_group = tp_group

    def get_extra_state(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Tensor | None) -> None:
        if state is not None and state.numel():
            refuse("a checkpoint with scales of fp8")


def gain(size: int, options: dict[str, Any], zero_centered: bool, sequence_parallel: bool) -> nn.Parameter:
    """Return the gain of a norm (or its bias, with `zero_centered`), marked for sequence parallel."""
    gain = nn.Parameter(torch.full((size,), 0.0 if zero_centered else 1.0, **options))
    gain.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]
    return gain


def normalize(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, zero_centered: bool, rms: bool) -> Tensor:
    """Apply RMSNorm or LayerNorm."""
    gain = gain + 1 if zero_centered else gain
    return F.rms_norm(x, gain.shape, gain, eps) if rms else F.layer_norm(x, gain.shape, gain, bias, eps)


class RMSNorm(TransformerEngineBaseModule):
    """Transformer Engine's RMSNorm."""

    rms = True

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        options = {"dtype": params_dtype, "device": device}
        self.weight = gain(hidden_size, options, zero_centered_gamma, sequence_parallel)
        self.bias = None if self.rms else gain(hidden_size, options, True, sequence_parallel)

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, self.weight, self.bias, self.eps, self.zero_centered_gamma, self.rms)


class LayerNorm(RMSNorm):
    """Transformer Engine's LayerNorm."""

    rms = False


class LayerNormMLP(TransformerEngineBaseModule):
    """Placeholder: PEFT and others check for this class with isinstance."""

    def __init__(self, *_: Any, **__: Any) -> None:
        refuse("LayerNormMLP")
