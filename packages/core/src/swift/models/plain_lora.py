"""Plain LoRA of twice the rank, which leaves a run whose adapters began as a part of the weights.

The frozen factors of `swift.models.adapter_initialization` are in checkpoints as `start_A` and `start_B`. Other
programs get them joined to the trained ones: A over A₀, and B beside -B₀.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from swift.contracts import WeightStream

_TRAINED = {".start_A.": ".lora_A.", ".start_B.": ".lora_B."}


def plain_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the plain LoRA that trained and frozen factors are together: twice the rank."""
    factor = math.sqrt(2) if config.get("use_rslora") else 2.0  # the scale alpha/r, or alpha/√r, stays
    return {
        **config,
        "r": 2 * config["r"],
        "lora_alpha": factor * config["lora_alpha"],
        "rank_pattern": {name: 2 * rank for name, rank in (config.get("rank_pattern") or {}).items()},
        "alpha_pattern": {name: factor * alpha for name, alpha in (config.get("alpha_pattern") or {}).items()},
    }


def as_plain_lora(weights: WeightStream) -> Iterator[tuple[str, torch.Tensor]]:
    """Join trained and frozen factors into matrices of twice the rank; pass all other tensors on as they are.

    Frozen factors come before the trained ones, as `adapter_names` lists them.
    """
    frozen: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        found = next((mark for mark in _TRAINED if mark in name), None)
        if found is not None:
            frozen[name.replace(found, _TRAINED[found])] = tensor.detach().clone()
            continue
        start = frozen.pop(name, None)
        if start is not None and ".lora_A." in name:
            tensor = torch.cat([tensor, start.to(tensor)], dim=0)
        elif start is not None:
            tensor = torch.cat([tensor, -start.to(tensor)], dim=1)
        yield name, tensor
        del tensor, start  # before the next one is made


def is_frozen_factor(name: str) -> bool:
    """Return whether a tensor in a checkpoint is a frozen factor."""
    return any(mark in name for mark in _TRAINED)
