"""Adapters that vLLM supports, judged by their configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from swift.contracts import WeightStream
from swift.models.adapter_file import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter_config
from swift_infer.servers import encoder_trait, unmerged

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM has; room is made for the largest adapter."""
ROOM = 64
"""For adapters that will be loaded later, where nothing else is known."""
AT_ONCE = 8
"""Adapters in one batch; more take turns."""


def check_adapter(folder: Path) -> None:
    """Refuse what vLLM would refuse after it has loaded everything else."""
    # That part of an adapter it would leave out, and say nothing.
    if trait := incompatibility(read_adapter_config(folder)) or encoder_trait(folder):
        raise unmerged(folder, trait, "vLLM")


def incompatibility(config: Mapping[str, Any]) -> str | None:
    """Return why vLLM cannot put an adapter on its base model, as the end of a sentence about it."""
    traits = {
        "was trained with DoRA": config.get("use_dora"),
        "trains biases": config.get("bias", "none") != "none" or config.get("lora_bias"),
        f"trains full modules ({', '.join(config.get('modules_to_save') or ())})": config.get("modules_to_save"),
        "adapts single parameters": config.get("target_parameters"),
        "repeats layers": config.get("layer_replication"),
        f"has rank {_rank(config)}": _rank(config) > RANKS[-1],
    }
    return next((trait for trait, present in traits.items() if present), None)


def write_adapter(weights: WeightStream, config: Mapping[str, Any], folder: Path) -> None:
    """Write an adapter in training as PEFT lays it out."""
    from safetensors.torch import save_file  # `swift serve` needs no torch

    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights}
    save_file(tensors, folder / ADAPTER_WEIGHTS)
    (folder / ADAPTER_CONFIG).write_text(json.dumps({**config, "inference_mode": True}))


def room_for(folders: Iterable[Path], *, more: bool) -> int:
    """Return the smallest rank of vLLM's that holds all of these, with room for usual ones if there may be `more`."""
    return max([*(rank_of(read_adapter_config(folder)) for folder in folders), ROOM if more else 1])


def rank_of(config: Mapping[str, Any]) -> int:
    """Return the smallest rank of vLLM's that holds an adapter."""
    return next(rank for rank in RANKS if rank >= _rank(config))


def _rank(config: Mapping[str, Any]) -> int:
    return max([int(config.get("r") or 1), *map(int, (config.get("rank_pattern") or {}).values())])
