"""Numbers in checkpoints from which nothing can go on: NaN, and others that no training makes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from swift.checkpoint.names import model_name

WHAT = "numbers from which nothing can go on (NaN, infinite, squares below zero, or counts of updates that are none)"
_BLOCK = 1 << 24
"""Elements that are looked at together: what is compared takes memory of its own."""
_MOST_UPDATES = 1 << 40
"""Beyond it a count is a mistake, and in float32 it is none that one more update could change."""


def unsound(tensors: Mapping[str, Any]) -> list[str]:
    """Return the canonical names of tensors with such numbers: of weights, of Adam's moments, of counts, of others.

    Of sharded tensors (DTensor, TensorSlices), the part that this process holds is looked at.
    """
    return [name for name, tensor in tensors.items() if any(_is_unsound(name, part) for part in _held(tensor))]


def _held(tensor: Any) -> Collection[torch.Tensor]:
    boxes = getattr(tensor, "boxes", None)
    if boxes is not None:
        held: Collection[torch.Tensor] = boxes.values()
        return held
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor]


def _is_unsound(name: str, tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.element_size() < 2 or tensor.is_meta:
        return False
    slot = "" if name.startswith(model_name("")) else name.rpartition(".")[2]
    if slot == "step" and tensor.numel() == 1:
        count = float(tensor)
        return not 0 <= count <= _MOST_UPDATES or count % 1 != 0
    return any(_has_unsound(block, slot) for block in torch.split(tensor.detach().reshape(-1), _BLOCK))


def _has_unsound(block: torch.Tensor, slot: str) -> bool:
    if slot not in ("", "exp_avg", "exp_avg_sq"):  # an optimizer of somebody else may keep infinity in its own
        return bool(block.isnan().any())
    return not bool(block.isfinite().all()) or (slot == "exp_avg_sq" and bool((block < 0).any()))
