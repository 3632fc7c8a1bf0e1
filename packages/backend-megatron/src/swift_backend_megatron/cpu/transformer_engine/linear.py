"""Linear layers whose weights may be sharded over the tensor parallel group, and one product per expert."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swift_backend_megatron.cpu.transformer_engine.modules import (
    TransformerEngineBaseModule,
    gain,
    gathered,
    mappings,
    normalize,
)
from swift_backend_megatron.cpu.unsupported import refuse, refuse_any


class _Projection(TransformerEngineBaseModule):
    """Arguments and weights that `Linear` and `GroupedLinear` share."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = None,
        ub_name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(tp_group)
        refuse_any(fuse_wgrad_accumulation=fuse_wgrad_accumulation, **options)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.parallel_mode = parallel_mode
        self.tp_size, self.sequence_parallel = tp_size, sequence_parallel and tp_size > 1
        self.use_bias, self.return_bias, self.ub_name = bias, return_bias, ub_name
        self.save_original_input = False
        self.in_features = in_features // tp_size if parallel_mode == "row" else in_features
        self.out_features = out_features // tp_size if parallel_mode == "column" else out_features
        self._new: dict[str, Any] = {"dtype": params_dtype, "device": device}
        self._init = (init_method or partial(nn.init.normal_, std=0.02), get_rng_state_tracker, rng_tracker_name)

    def _add_weights(self, suffix: str = "") -> None:
        init_method, tracker, name = self._init
        weight = nn.Parameter(torch.empty(self.out_features, self.in_features, **self._new))
        fork = nullcontext() if tracker is None else tracker().fork(*([name] if name else []))
        with torch.no_grad(), fork:
            init_method(weight)
        bias = nn.Parameter(torch.zeros(self.out_features, **self._new)) if self.use_bias else None
        if self.parallel_mode in ("column", "row"):
            _mark(weight, int(self.parallel_mode == "row"))
        if bias is not None and self.parallel_mode == "column":
            _mark(bias, 0)
        if bias is not None and self.parallel_mode == "row":
            bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        self.register_parameter(f"weight{suffix}", weight)
        self.register_parameter(f"bias{suffix}", bias)


def _mark(parameter: nn.Parameter, dim: int) -> None:
    for name, value in {"tensor_model_parallel": True, "partition_dim": dim, "partition_stride": 1}.items():
        setattr(parameter, name, value)


class Linear(_Projection):
    """A product whose weight may be sharded by rows or columns over the tensor parallel group."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._add_weights()

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Any:
        return self._multiply(self._enter(x))

    def _enter(self, x: Tensor) -> Tensor:
        if self.tp_size == 1 or self.parallel_mode != "column":
            return x
        if self.sequence_parallel:
            return gathered(x, self.tp_group)
        return mappings().copy_to_tensor_model_parallel_region(x, group=self.tp_group)  # type: ignore[no-any-return]

    def _multiply(self, x: Tensor) -> Any:
        row = self.tp_size > 1 and self.parallel_mode == "row"
        bias = None if self.return_bias else self.bias
        y = F.linear(x, self.weight, None if row else bias)
        if row and self.sequence_parallel:
            y = mappings().reduce_scatter_to_sequence_parallel_region(y, group=self.tp_group)
        elif row:
            y = mappings().reduce_from_tensor_model_parallel_region(y, group=self.tp_group)
        if row and bias is not None:
            y = y + bias
        return (y, self.bias) if self.return_bias else y


class LayerNormLinear(Linear):
    """A norm and a product in one module."""

    layer_norm_weight: Tensor
    layer_norm_bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        sequence_parallel: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_features, out_features, sequence_parallel=sequence_parallel, **kwargs)
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        bias = None
        if normalization == "LayerNorm":
            bias = gain(in_features, self._new, True, sequence_parallel)
        self.layer_norm_weight = gain(in_features, self._new, zero_centered_gamma, sequence_parallel)
        self.register_parameter("layer_norm_bias", bias)
        for name in ("weight", "bias"):
            self._parameters[name] = self._parameters.pop(name)  # the norm's come first

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Any:
        rms = self.normalization == "RMSNorm"
        x = normalize(x, self.layer_norm_weight, self.layer_norm_bias, self.eps, self.zero_centered_gamma, rms)
        entered = self._enter(x)
        y = self._multiply(entered)
        if not self.return_layernorm_output:
            return y
        normed = entered if self.return_layernorm_output_gathered and self.sequence_parallel else x
        return (*y, normed) if self.return_bias else (y, normed)


class GroupedLinear(_Projection):
    """One product per expert over consecutive tokens. Experts without tokens get gradients of zero."""

    def __init__(self, num_gemms: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.tp_size > 1:
            refuse("a grouped product that communicates by itself")
        self.num_gemms = num_gemms
        for index in range(num_gemms):
            self._add_weights(str(index))

    def forward(self, x: Tensor, m_splits: Iterable[int], is_first_microbatch: bool | None = None) -> Any:
        biases = [self._parameters[f"bias{index}"] for index in range(self.num_gemms)]
        parts = torch.split(x, [int(size) for size in m_splits])
        outs = [
            F.linear(part, self._parameters[f"weight{index}"], None if self.return_bias else biases[index])  # type: ignore[arg-type]
            for index, part in enumerate(parts)
        ]
        y = torch.cat(outs)
        return (y, biases) if self.return_bias else y
