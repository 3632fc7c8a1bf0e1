"""Merging adapters of other kinds than LoRA, one weight at a time: PEFT itself does it, on one layer alone."""

from __future__ import annotations

import math
import re
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
    raise ExportError(
        f"The adapter's {name} matches no weight of the base model.",
        hint="Check that the adapter was trained on this model.",
    )


def _stream(
    base: ModelSource,
    names: list[str],
    replaced: Mapping[str, torch.Tensor],
    layers: Mapping[str, Mapping[str, torch.Tensor]],
    settings: Mapping[str, Any],
) -> WeightStream:
    kind_of_adapter = kind_of(settings)
    if kind_of_adapter == "VERA" and layers:
        rows, columns = (max(sizes) for sizes in zip(*(base.shape(f"{path}.weight") for path in layers), strict=True))
        key = settings.get("projection_prng_key") or 0
        a, b = vera_directions(key, settings["r"], inputs=columns, outputs=rows)
    for name in names:
        path, _, kind = name.rpartition(".")
        if path in layers and kind == "weight" and kind_of_adapter == "VERA":
            scales, outputs = (_vector(layers[path], path, part) for part in ("vera_lambda_d", "vera_lambda_b"))
            weight = base.read(name).float()
            height, width = weight.shape
            yield name, weight + outputs[:, None].float() * (b[:height] @ (scales[:, None].float() * a[:, :width]))
        elif path in layers and kind == "weight":
            yield name, _merged_layer(base.read(name).float(), None, path, layers[path], settings).weight.detach()
        elif path in layers and kind == "bias" and kind_of_adapter == "IA3":  # what is scaled is the whole output
            weight, bias = (base.read(f"{path}.{part}").float() for part in ("weight", "bias"))
            yield name, _merged_layer(weight, bias, path, layers[path], settings).bias.detach()
        else:
            yield name, replaced[name] if name in replaced else base.read(name)


def vera_directions(key: int, rank: int, *, inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the directions that all layers of VeRA (arXiv:2310.11454) share, generated from a key as PEFT does.

    A [rank, inputs] and B [outputs, rank] for the widest of the adapted layers; others take a part.
    """
    generator = torch.Generator().manual_seed(key)
    a, b = torch.empty(rank, inputs), torch.empty(outputs, rank)
    for matrix in (a, b):
        bound = math.sqrt(6 / matrix.shape[1])
        matrix.uniform_(-bound, bound, generator=generator)
    return a, b


def _vector(adapter: Mapping[str, torch.Tensor], path: str, part: str) -> torch.Tensor:
    try:
        return adapter[f"{path}.{part}"]
    except KeyError:
        raise ExportError(f"The adapter of {path} lacks {part}.", hint="Copy the adapter again.") from None


@torch.no_grad()
def _merged_layer(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    path: str,
    adapter: Mapping[str, torch.Tensor],
    settings: Mapping[str, Any],
) -> Any:
    """Return a linear layer, which is merged at its own path so that PEFT's patterns of names hold."""
    with without_bitsandbytes():
        from peft import PeftConfig, inject_adapter_in_model, set_peft_model_state_dict

    outputs, inputs = weight.shape
    linear = torch.nn.Linear(inputs, outputs, bias=False, device="meta")
    linear.weight = torch.nn.Parameter(weight.clone())
    linear.register_parameter("bias", None if bias is None else torch.nn.Parameter(bias.clone()))
    holder = _nested(path, linear)
    anywhere = {"exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save"} & settings.keys()
    own = {**settings, **dict.fromkeys(anywhere), "target_modules": [path], "inference_mode": True}
    if kind_of(settings) == "IA3":
        own["feedforward_modules"] = [path] if _scales_inputs(settings, path) else []
    with torch.random.fork_rng(devices=[]), without_bitsandbytes():
        inject_adapter_in_model(PeftConfig.from_peft_type(**own), holder, adapter_name=ADAPTER)
        tensors = {name: tensor.float() for name, tensor in adapter.items()}
        unplaced = set_peft_model_state_dict(holder, tensors, adapter_name=ADAPTER).unexpected_keys
    if unplaced:
        raise ExportError(
            f"The adapter's {unplaced[0]} matches no parameter of {path}.",
            hint="Check that the adapter was trained on this model.",
        )
    layer: Any = holder.get_submodule(path)
    layer.merge()
    return layer.get_base_layer()


def _scales_inputs(settings: Mapping[str, Any], path: str) -> bool:
    """Return whether PEFT's IA³ scales what this layer is given, and not what it returns."""
    named = settings.get("feedforward_modules") or []
    return bool(re.fullmatch(named, path)) if isinstance(named, str) else any(path.endswith(each) for each in named)


def _nested(path: str, leaf: torch.nn.Module) -> torch.nn.Module:
    module = leaf
    for part in reversed(path.split(".")):
        outer = torch.nn.Module()
        outer.add_module(part, module)
        module = outer
    return module
