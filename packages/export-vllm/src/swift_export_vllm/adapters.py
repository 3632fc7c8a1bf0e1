"""Adapters that vLLM supports, judged by their configuration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from swift.errors import ModelError
from swift.models.adapter_file import read_adapter_config

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM has; room is made for the largest adapter."""
ROOM = 64
"""For adapters that will be loaded later, where nothing else is known."""
AT_ONCE = 8
"""Adapters in one batch; more take turns."""


def check_adapter(folder: Path) -> None:
    """Refuse what vLLM would refuse after it has loaded everything else."""
    config = _config(folder)
    traits = {
        "was trained with DoRA": config.get("use_dora"),
        "trains biases": config.get("bias", "none") != "none" or config.get("lora_bias"),
        f"trains full modules ({', '.join(config.get('modules_to_save') or ())})": config.get("modules_to_save"),
        "adapts single parameters": config.get("target_parameters"),
        "repeats layers": config.get("layer_replication"),
        f"has rank {_rank(config)}": _rank(config) > RANKS[-1],
    }
    for trait, present in traits.items():
        if present:
            raise ModelError(
                f"The adapter {folder} {trait}, which vLLM cannot serve with a base model.",
                hint="Merge it and serve the result: swift export RUN --to hf --out merged && swift serve merged",
            )


def room_for(folders: Iterable[Path], *, more: bool) -> int:
    """Return the smallest rank of vLLM's that holds all of these, with room for usual ones if there may be `more`."""
    largest = max([*(_rank(_config(folder)) for folder in folders), ROOM if more else 1])
    return next(rank for rank in RANKS if rank >= largest)


def _rank(config: dict[str, Any]) -> int:
    return max([int(config.get("r") or 1), *map(int, (config.get("rank_pattern") or {}).values())])


def _config(folder: Path) -> dict[str, Any]:
    return read_adapter_config(folder)
