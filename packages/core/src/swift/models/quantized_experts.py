"""Experts of a mixture in 4 or 8 bits: stored packed, and dense while their module computes.

transformers stacks the experts of a layer into one parameter of three dimensions, which the module's own code indexes
or multiplies whole. So the module is given dense weights for its forward pass, and for its backward pass again:
autograd keeps none of them in between. At any time one layer is dense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

import torch

from swift.config.sections import TunerSection

NF4_BLOCK = 64
"""Weights that share one scale in torchao's NF4."""
NF4_SCALER_BLOCK = 256
_MOST = 2**30
"""Values that are quantised together: kernels of bitsandbytes count in 32 bits."""
_PER_STEP = 1 / 127


class Scales(Protocol):
    """What makes dense weights of packed ones."""

    @property
    def shape(self) -> torch.Size:
        """The shape of the dense weight."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Its precision: the model's."""
        ...

    def dense(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the weight in the model's precision."""
        ...


class PackedExperts(torch.nn.Parameter):
    """The packed values of a layer's experts, as bitsandbytes stores them; the module keeps their scales."""

    whole_shape: torch.Size
    """Of the dense weight."""


def is_stack(path: str, module: torch.nn.Module, weight: torch.Tensor) -> bool:
    """Return whether a weight of the module at this path is that of several experts, one after the other."""
    return weight.ndim == 3 and any("expert" in part.lower() for part in (*path.split("."), type(module).__name__))


def quantise_experts(model: torch.nn.Module, name: str, packed: torch.nn.Parameter, scales: Scales) -> None:
    """Store a stack of experts packed, and have its module compute with the dense one."""
    path, _, leaf = name.rpartition(".")
    module: Any = model.get_submodule(path)
    module.register_parameter(leaf, packed)
    if not hasattr(module, "expert_scales"):
        module.expert_scales, module.expert_updates = {}, {}
        uncompiled = torch.compiler.disable(_forward)  # type: ignore[no-untyped-call]  # torch's
        module.forward = partial(uncompiled, module, module.forward)
    module.expert_scales[leaf] = scales


@contextmanager
def code_replaced(model: torch.nn.Module) -> Iterator[None]:
    """Let code inside replace how modules compute, and have experts compute with dense weights by the new code, too."""
    packed: list[Any] = [module for module in model.modules() if hasattr(module, "expert_scales")]
    before = [module.forward for module in packed]
    yield
    for module, forward in zip(packed, before, strict=True):
        if module.forward is not forward:
            module.forward = partial(forward.func, module, module.forward)


def dense_experts(module: Any, name: str) -> torch.Tensor:
    """Return a weight of a module's experts as the module computes with it: dense, also where it is stored packed.

    Where a backend keeps a part of each weight in a process, the module's own have to be gathered.
    """
    weight: torch.Tensor = module._parameters[name]
    scales: Scales | None = getattr(module, "expert_scales", {}).get(name)
    if scales is None:
        return weight
    with torch.no_grad():
        return scales.dense(weight.data)


def _forward(module: Any, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Compute with dense weights, which hide the packed ones for as long as this takes."""
    weights = {name: dense_experts(module, name) for name in module.expert_scales}
    updated = {name: weights[name] + update for name, update in module.expert_updates.items()}
    module.__dict__.update({**weights, **updated})
    try:
        with _saved_packed(module, weights):
            return forward(*inputs, **named)
    finally:
        for name in weights:
            del module.__dict__[name]


@contextmanager
def _saved_packed(module: Any, weights: dict[str, torch.Tensor]) -> Iterator[None]:
    """Have autograd save which part of which weight a product needs, and make it dense again in the backward pass."""
    # Hooks do not nest. Those of gradient checkpointing keep nothing of a forward pass, which is computed again.
    if not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        yield
        return
    names = {_storage(weight): name for name, weight in weights.items()}
    restored: dict[str, torch.Tensor] = {}  # gone with the last product of the module in the backward pass

    def pack(tensor: torch.Tensor) -> Any:
        name = names.get(_storage(tensor))
        if name is None:
            return tensor.detach()
        return name, tensor.shape, tensor.stride(), tensor.storage_offset()

    def unpack(saved: Any) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        name, *geometry = saved
        if name not in restored:
            restored[name] = dense_experts(module, name)
        return restored[name].as_strided(*geometry)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


@contextmanager
def adapters_on_packed() -> Iterator[None]:
    """Have PEFT attach adapters to packed experts as it does to dense ones: by adding to the dense weight."""
    from peft.tuners.lora import layer

    original = layer.ParamWrapper
    layer.ParamWrapper = _param_wrapper(original)
    try:
        yield
    finally:
        layer.ParamWrapper = original


@cache
def _param_wrapper(original: Any) -> Any:
    class ParamWrapper(original):  # type: ignore[misc]  # PEFT looks for this name
        def get_param(self) -> torch.Tensor:
            module = self.get_base_layer()
            packed = module._parameters[self.parameter_name]
            scales: Scales | None = getattr(module, "expert_scales", {}).get(self.parameter_name)
            if scales is None:
                return super().get_param()  # type: ignore[no-any-return]  # PEFT has no types
            return torch.empty((), dtype=scales.dtype, device=packed.device).expand(scales.shape)  # for its shape

        @contextmanager
        def _activate_lora(self, active_adapters: Sequence[str]) -> Iterator[None]:
            updates = getattr(self.get_base_layer(), "expert_updates", None)
            active = [each for each in active_adapters if each in self.lora_A]
            if updates is None or not active:
                with super()._activate_lora(active_adapters):
                    yield
                return
            updates[self.parameter_name] = sum(map(self.get_delta_weight, active))
            try:
                yield
            finally:
                del updates[self.parameter_name]

    return ParamWrapper


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@dataclass(frozen=True)
class _Blocks:
    """Scales of 4 bits, as bitsandbytes makes them, for each run of experts."""

    functional: Any
    shape: torch.Size
    states: list[Any]

    @property
    def dtype(self) -> torch.dtype:
        return self.states[0].dtype  # type: ignore[no-any-return]  # bitsandbytes has none

    def dense(self, packed: torch.Tensor) -> torch.Tensor:
        dequantize = self.functional.dequantize_4bit
        if len(self.states) == 1:
            return dequantize(packed, self.states[0])  # type: ignore[no-any-return]  # nor here
        each = [state.shape.numel() * len(packed) // self.shape.numel() for state in self.states]
        weight = torch.empty(self.shape, dtype=self.dtype, device=packed.device)
        runs = torch.split(weight, [state.shape[0] for state in self.states])
        for values, state, run in zip(torch.split(packed, each), self.states, runs, strict=True):
            run.copy_(dequantize(values, state))
        return weight


@dataclass(frozen=True)
class _Rows:
    """Scales of 8 bits, one for each row of each expert."""

    shape: torch.Size
    dtype: torch.dtype
    scales: torch.Tensor

    def dense(self, packed: torch.Tensor) -> torch.Tensor:
        return packed.to(self.dtype).mul_(self.scales.mul(_PER_STEP).unsqueeze(-1))


@dataclass(frozen=True)
class _Nf4:
    """torchao keeps the scales with the values."""

    shape: torch.Size
    dtype: torch.dtype

    def dense(self, packed: Any) -> torch.Tensor:
        weight: torch.Tensor = packed.get_original_weight()
        return weight.view(self.shape)


def packed_experts(weight: torch.Tensor, section: TunerSection, library: Any) -> tuple[torch.nn.Parameter, Scales]:
    """Return a stack of experts as `tuner.quantize` says, and what makes it dense again."""
    if section.quantize == "torchao-nf4":
        flat = weight.reshape(-1, weight.shape[-1])
        made = library.to_nf4(flat, block_size=NF4_BLOCK, scaler_block_size=NF4_SCALER_BLOCK)
        return torch.nn.Parameter(made, requires_grad=False), _Nf4(weight.shape, weight.dtype)
    functional = library.functional
    runs = torch.split(weight, max(1, _MOST // weight[0].numel()))
    scales: Scales
    if section.quantize == "bnb-int8":
        made = [functional.int8_vectorwise_quant(run.reshape(-1, weight.shape[-1]).half())[:2] for run in runs]
        values = torch.cat([each for each, _ in made]).view(weight.shape)
        scales = _Rows(weight.shape, weight.dtype, torch.cat([each for _, each in made]).view(weight.shape[:-1]))
    else:
        kind = section.quantize.removeprefix("bnb-")
        # Stored as wide as the other weights, so that FSDP can lay them out together.
        made = [
            functional.quantize_4bit(
                run, compress_statistics=section.double_quant, quant_type=kind, quant_storage=weight.dtype
            )
            for run in runs
        ]
        values = torch.cat([each for each, _ in made]) if len(made) > 1 else made[0][0]
        scales = _Blocks(functional, weight.shape, [state for _, state in made])
    packed = PackedExperts(values, requires_grad=False)
    packed.whole_shape = weight.shape
    return packed, scales
