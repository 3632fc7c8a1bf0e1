"""Detects invalid values in checkpoints: NaN, and others that no training produces."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from swift.checkpoint.names import model_name

INVALID_VALUES = "invalid values (NaN, inf, negative second moments or invalid step counts)"
_BLOCK = 1 << 24
"""Elements checked at a time, to limit memory."""
_MOST_UPDATES = 1 << 40
"""Larger step counts are invalid."""


def invalid_tensors(tensors: Mapping[str, Any]) -> list[str]:
    """Return the canonical names of tensors with invalid values; of sharded ones, the local part is checked."""
    return [name for name, tensor in tensors.items() if any(_is_invalid(name, part) for part in _held(tensor))]


def _held(tensor: Any) -> Collection[torch.Tensor]:
    slices = getattr(tensor, "slices", None)
    if slices is not None:
        held: Collection[torch.Tensor] = slices.values()
        return held
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor]


def _is_invalid(name: str, tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.element_size() < 2 or tensor.is_meta:
        return False
    slot = "" if name.startswith(model_name("")) else name.rpartition(".")[2]
    if slot == "step" and tensor.numel() == 1:
        count = float(tensor)
        return not 0 <= count <= _MOST_UPDATES or count % 1 != 0
    return any(_has_invalid(block, slot) for block in torch.split(tensor.detach().reshape(-1), _BLOCK))


def _has_invalid(block: torch.Tensor, slot: str) -> bool:
    if slot not in ("", "exp_avg", "exp_avg_sq"):  # third-party optimizers may keep infinity
        return bool(block.isnan().any())
    return not bool(block.isfinite().all()) or (slot == "exp_avg_sq" and bool((block < 0).any()))
