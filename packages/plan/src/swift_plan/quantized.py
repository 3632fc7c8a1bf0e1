"""Quantized weights of a model that a run of QLoRA would build, counted without weights. Imports torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from swift.config.sections import TunerSection
from swift.contracts import QuantizedShare
from swift.errors import ModelError
from swift.models.quiet import quiet_libraries


@dataclass(frozen=True)
class QuantizedPart:
    """Quantized weights of a part of a model, and their bytes with all scales."""

    values: int = 0
    stored: int = 0
    scales: int = 0
    """Of `stored`, what every process keeps whole."""


@dataclass(frozen=True)
class QuantizedModel:
    """Quantized weights of a model's layers; embedding and head have none."""

    share: QuantizedShare
    plain: QuantizedPart
    """Of a layer with an MLP."""
    mixed: QuantizedPart
    """Of a layer with experts, without these."""
    experts: QuantizedPart
    """Of the routed experts of a layer."""


def quantized_model(config: Mapping[str, Any], section: TunerSection, dtype: str) -> QuantizedModel:
    """Return what a `tuner` section quantizes of the model with this config.json; the rest is stored in `dtype`."""
    return _quantized_model(json.dumps(config, sort_keys=True), section.quantize, section.double_quant, dtype)


@lru_cache(maxsize=8)
def _quantized_model(config: str, quantize: str, double_quant: bool, dtype: str) -> QuantizedModel:
    quiet_libraries()
    import torch

    from swift.toolkit import decoder_blocks, quantized_share, scale_bytes, stored_bytes, weights_to_quantise

    model = _without_weights(json.loads(config), getattr(torch, dtype))
    quantized = {id(model.get_parameter(name)) for name in weights_to_quantise(model)}

    def part(block: Any, *, experts: bool) -> QuantizedPart:
        found = [weight for name, weight in block.named_parameters()
                 if id(weight) in quantized and _is_of_experts(name) == experts]  # fmt: skip
        stored, scales = (
            sum(count(weight.shape, quantize, double_quant=double_quant) for weight in found)
            for count in (stored_bytes, scale_bytes)
        )
        return QuantizedPart(sum(weight.numel() for weight in found), stored, scales)

    blocks = decoder_blocks(model)
    routed = [any(_is_of_experts(name) for name, _ in block.named_parameters()) for block in blocks]
    plain, mixed = (blocks[routed.index(each) if each in routed else 0] for each in (False, True))
    share = quantized_share(model, getattr(torch, dtype))
    return QuantizedModel(share, part(plain, experts=False), part(mixed, experts=False), part(mixed, experts=True))


def _is_of_experts(path: str) -> bool:
    return "experts" in path.split(".")


def _without_weights(content: Mapping[str, Any], dtype: Any) -> Any:
    import torch
    from transformers import AutoConfig

    from swift.toolkit import auto_class

    try:
        config = AutoConfig.for_model(**content)
        with torch.device("meta"):
            model = auto_class(config).from_config(config, dtype=dtype)
    except Exception as error:  # a model's own code, which config.json may not fit
        first = str(error).partition("\n")[0]
        raise ModelError(
            f"transformers cannot build this model, so its quantized weights are unknown: {first}",
            hint="Use --train_type lora, or a model that transformers supports.",
        ) from error
    model.tie_weights()
    return model
