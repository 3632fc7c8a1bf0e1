"""Merging adapters of other kinds than LoRA, one weight at a time: PEFT itself does it, on one layer alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from swift.contracts import ModelSource, WeightStream
from swift.errors import ExportError
from swift.models.adapter_file import KINDS, checked_adapter, kind_of
from swift.models.names import ADAPTER
from swift.models.quiet import without_bitsandbytes

_PREFIX = "base_model.model."


def merged_by_peft(base: ModelSource, adapters: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> WeightStream:
    """Return the stream of every weight of the base model with the adapter merged in, in fp32 where it changed."""
    if kind_of(config) not in KINDS:
        raise ExportError(
            f"{kind_of(config)} adapters cannot be merged; {', '.join(KINDS)} can.",
            hint="Type: swift export --to adapter, and use the adapter with its base model.",
        )
    settings = checked_adapter(config, "the adapter's configuration", ExportError)
    names = base.names()
    replaced: dict[str, torch.Tensor] = {}
    layers: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in adapters.items():
        inner = name.removeprefix(_PREFIX)
        if inner in names:
            replaced[inner] = tensor
        else:
            layers[_layer_of(name, inner, names)][inner] = tensor
    return _stream(base, names, replaced, layers, settings)


def _layer_of(name: str, inner: str, names: list[str]) -> str:
    known, path = set(names), inner
    while path:
        path = path.rpartition(".")[0]
        if f"{path}.weight" in known:
            return path
    raise ExportError(f"The adapter's {name} belongs to no weight of the base model.", hint="Is it another model's?")


def _stream(
    base: ModelSource,
    names: list[str],
    replaced: Mapping[str, torch.Tensor],
    layers: Mapping[str, Mapping[str, torch.Tensor]],
    settings: Mapping[str, Any],
) -> WeightStream:
    for name in names:
        path, _, kind = name.rpartition(".")
        if kind == "weight" and path in layers:
            yield name, _merged_weight(base.read(name).float(), path, layers[path], settings)
        else:
            yield name, replaced[name] if name in replaced else base.read(name)


@torch.no_grad()
def _merged_weight(
    weight: torch.Tensor, path: str, adapter: Mapping[str, torch.Tensor], settings: Mapping[str, Any]
) -> torch.Tensor:
    """Return the weight of a linear layer, which is merged at its own path so that PEFT's patterns of names hold."""
    with without_bitsandbytes():
        from peft import PeftConfig, inject_adapter_in_model, set_peft_model_state_dict

    outputs, inputs = weight.shape
    linear = torch.nn.Linear(inputs, outputs, bias=False, device="meta")
    linear.weight = torch.nn.Parameter(weight.clone())
    holder = _nested(path, linear)
    anywhere = {"exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save"} & settings.keys()
    own = {**settings, **dict.fromkeys(anywhere), "target_modules": [path], "inference_mode": True}
    with torch.random.fork_rng(devices=[]), without_bitsandbytes():
        inject_adapter_in_model(PeftConfig.from_peft_type(**own), holder, adapter_name=ADAPTER)
        tensors = {name: tensor.float() for name, tensor in adapter.items()}
        unplaced = set_peft_model_state_dict(holder, tensors, adapter_name=ADAPTER).unexpected_keys
    if unplaced:
        raise ExportError(f"The adapter's {unplaced[0]} has no place in {path}.", hint="Is it another model's?")
    layer: Any = holder.get_submodule(path)
    layer.merge()
    merged: torch.Tensor = layer.get_base_layer().weight.detach()
    return merged


def _nested(path: str, leaf: torch.nn.Module) -> torch.nn.Module:
    module = leaf
    for part in reversed(path.split(".")):
        outer = torch.nn.Module()
        outer.add_module(part, module)
        module = outer
    return module
