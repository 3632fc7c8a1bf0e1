"""Collects the inputs of a block's linear layers, and rounds its weights accordingly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from swift.errors import ExportError
from swift_export_vllm.quantise.formats import FP8, Stored, store, store_fp8, store_nf4
from swift_export_vllm.quantise.rounding import asymmetric_grid, input_scales, with_feedback
from swift_export_vllm.quantise.schemes import Scheme
from swift_export_vllm.quantise.walk import TokenBatch, Walk

Linear = torch.nn.Linear


@dataclass
class Inputs:
    """Statistics of the input that some linear layers share."""

    layers: list[Linear]
    moments: torch.Tensor
    magnitudes: torch.Tensor
    producer: torch.nn.Module | None = None
    """The norm whose output it is."""
    tokens: int = 0

    def see(self, values: torch.Tensor) -> None:
        self.moments.addmm_(values.T, values)
        self.magnitudes += values.abs().sum(0)
        self.tokens += len(values)


@dataclass
class _Watch:
    """Hooks over one call of a block."""

    real: torch.Tensor
    seen: dict[int, Inputs] = field(default_factory=dict)
    """By the id of the first layer that was given it."""
    given: list[tuple[torch.Tensor, Inputs]] = field(default_factory=list)
    norms: list[tuple[torch.Tensor, torch.nn.Module]] = field(default_factory=list)

    def linear(self, layer: Linear, arguments: tuple[Any, ...]) -> None:
        values = arguments[0]
        for before, inputs in self.given:
            if before is values:
                if layer not in inputs.layers:
                    inputs.layers.append(layer)
                return
        inputs = self.seen.get(id(layer)) or self._first(layer, values)
        self.given.append((values, inputs))
        inputs.see(values.reshape(-1, values.shape[-1])[self.real.reshape(-1)].float())

    def norm(self, norm: torch.nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            self.norms.append((output, norm))

    def _first(self, layer: Linear, values: torch.Tensor) -> Inputs:
        size, device = layer.in_features, values.device
        producer = next((norm for output, norm in self.norms if output is values), None)
        inputs = Inputs([layer], torch.zeros(size, size, device=device), torch.zeros(size, device=device), producer)
        self.seen[id(layer)] = inputs
        return inputs


@torch.no_grad()
def observe(walk: Walk, index: int, samples: Sequence[TokenBatch]) -> list[Inputs]:
    """Run the samples through a block, and note what its linear layers are given."""
    block = walk.blocks[index]
    watch = _Watch(torch.empty(0))
    hooks = []
    for module in block.modules():
        if isinstance(module, Linear):
            hooks.append(module.register_forward_pre_hook(watch.linear))
        elif _is_norm(module):
            hooks.append(module.register_forward_hook(watch.norm))
    try:
        for batch in samples:
            watch.real = batch.real.to(walk.device)
            watch.given.clear()
            watch.norms.clear()
            walk.run(index, batch)
    finally:
        for hook in hooks:
            hook.remove()
    for inputs in watch.seen.values():
        inputs.moments /= max(1, inputs.tokens)
        inputs.magnitudes /= max(1, inputs.tokens)
    return list(watch.seen.values())


def _is_norm(module: torch.nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and weight.dim() == 1 and len(module._parameters) == 1


@torch.no_grad()
def round_block(
    walk: Walk,
    scheme: Scheme,
    seen: Sequence[Inputs],
    block: torch.nn.Module,
    *,
    group: int,
    dtype: torch.dtype,
    left: set[str],
    scaled: Callable[[], None],
) -> dict[str, Stored]:
    """Round the linear layers of a block in place, except those in `left`; returns tensors to store, by name.

    `scaled` is called when inputs have been scaled and nothing is rounded yet.
    """
    inputs_of = {id(layer): inputs for inputs in seen for layer in inputs.layers}
    if scheme.method == "scaling":
        for inputs in seen:
            if not any(walk.path(layer) in left for layer in inputs.layers):
                _scale_up(walk, block, inputs, group=group, dtype=dtype)
        scaled()
    for module in block.modules():  # what is written next to the integers, as it will be read
        for parameter in module._parameters.values():
            if parameter is not None and not (isinstance(module, Linear) and parameter is module.weight):
                parameter.data = parameter.data.to(dtype).float()
    stored = {}
    for module in list(block.modules()):
        if not isinstance(module, Linear):
            continue
        name = walk.path(module)
        if name in left:
            module.weight.data = module.weight.data.to(dtype).float()
            continue
        stored[name] = _round(scheme, module.weight.data, inputs_of.get(id(module)), group=group, dtype=dtype)
        module.weight.data = stored[name].weight.to(module.weight.device)
    return stored


def _round(scheme: Scheme, weight: torch.Tensor, seen: Inputs | None, *, group: int, dtype: torch.dtype) -> Stored:
    if scheme.name == "fp8":
        return store_fp8(scheme, weight)
    if scheme.name == "bnb":
        return store_nf4(weight)
    size = weight.shape[1]
    moments = torch.eye(size, device=weight.device) if seen is None else seen.moments
    if scheme.method == "scaling":
        importance = torch.diagonal(moments)
        grid = asymmetric_grid(weight, bits=4, group=group, importance=importance, dtype=dtype)
        return store(scheme, grid.integers(weight), grid)
    if scheme.grouped:
        integers, grid = with_feedback(weight, moments, bits=4, group=group, dtype=dtype, search=True)
    else:
        integers, grid = with_feedback(weight, moments, bits=8, group=size, dtype=torch.float32, search=False)
    return store(scheme, integers, grid)


def _scale_up(walk: Walk, block: torch.nn.Module, inputs: Inputs, *, group: int, dtype: torch.dtype) -> None:
    """AWQ: multiply inputs that matter, and divide what produces them; the block computes what it did."""
    produced_by: Any = inputs.producer or _projection_before(walk, block, inputs)
    if produced_by is None:
        return
    weights = [layer.weight.data for layer in inputs.layers]
    scales = input_scales(weights, inputs.moments, inputs.magnitudes, bits=4, group=group, dtype=dtype)
    for layer in inputs.layers:
        layer.weight.data = layer.weight.data * scales
    inputs.moments /= scales[:, None] * scales[None, :]
    inputs.magnitudes /= scales
    if isinstance(produced_by, Linear):
        produced_by.weight.data = produced_by.weight.data / scales[:, None]
        if produced_by.bias is not None:
            produced_by.bias.data = produced_by.bias.data / scales
    elif _zero_centred(produced_by, len(scales), walk.device):
        produced_by.weight.data = (1 + produced_by.weight.data) / scales - 1
    else:
        produced_by.weight.data = produced_by.weight.data / scales


def _projection_before(walk: Walk, block: torch.nn.Module, inputs: Inputs) -> torch.nn.Module | None:
    """`up_proj`, whose output is multiplied by the gate's and goes into `down_proj`."""
    if len(inputs.layers) != 1 or not walk.path(inputs.layers[0]).endswith(".down_proj"):
        return None
    stem = walk.path(inputs.layers[0]).removesuffix("down_proj")
    siblings = {walk.path(module): module for module in block.modules()}
    up, gate = siblings.get(f"{stem}up_proj"), siblings.get(f"{stem}gate_proj")
    fits = isinstance(up, Linear) and gate is not None and up.out_features == inputs.layers[0].in_features
    return up if fits else None


def _zero_centred(norm: Any, size: int, device: str) -> bool:
    """Return whether the norm multiplies by one more than its weight."""
    weight = norm.weight
    kept = weight.data
    weight.data = torch.zeros_like(kept)
    silent = bool((norm(torch.randn(1, size, device=device)) == 0).all())
    weight.data = kept
    return not silent


def check_unchanged(before: torch.Tensor, after: torch.Tensor, name: str) -> None:
    """Scaling must not change what a block computes."""
    if not torch.allclose(before, after, rtol=1e-2, atol=1e-2 * float(before.abs().mean() + 1e-6)):
        raise ExportError(
            f"Inputs of {name} cannot be scaled: its layers are put together otherwise than those that are known.",
            hint="Take another quantisation: --quant w4a16",
        )


@contextmanager
def rounded_inputs(scheme: Scheme, layers: Sequence[Linear]) -> Iterator[None]:
    """While entered, these layers are given what engines give them: rounded, token by token."""
    if scheme.inputs is None:
        yield
        return

    def round_int8(_: Any, arguments: tuple[Any, ...]) -> tuple[torch.Tensor]:
        values = arguments[0]
        scale = (values.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-8)
        return ((values / scale).round().clamp(-127, 127) * scale,)

    def round_fp8(_: Any, arguments: tuple[Any, ...]) -> tuple[torch.Tensor]:
        values = arguments[0]
        scale = (values.abs().amax(-1, keepdim=True) / torch.finfo(FP8).max).clamp(min=1e-8)
        return ((values / scale).to(FP8).to(values.dtype) * scale,)

    hooks = [layer.register_forward_pre_hook(round_int8 if scheme.inputs == "int8" else round_fp8) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
