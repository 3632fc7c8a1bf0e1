"""Checkpoints: one format for all backends; no process ever holds the whole model.

Names are imported when they are asked for: finding a checkpoint does not need torch's distributed machinery.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift.checkpoint.folders import clean_stale, find_checkpoint, link, prune
    from swift.checkpoint.load import check_resume, open_checkpoint
    from swift.checkpoint.manifest import Manifest
    from swift.checkpoint.save import PendingSave, before_update, save_checkpoint, wait_for_saves
    from swift.checkpoint.tensor_slices import TensorSlices, flat_slices, part_slices

_HOMES = {
    "tensor_slices": ("TensorSlices", "flat_slices", "part_slices"),
    "folders": ("clean_stale", "find_checkpoint", "link", "prune"),
    "load": ("check_resume", "open_checkpoint"),
    "manifest": ("Manifest",),
    "save": ("PendingSave", "before_update", "save_checkpoint", "wait_for_saves"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Manifest",
    "PendingSave",
    "TensorSlices",
    "before_update",
    "check_resume",
    "clean_stale",
    "find_checkpoint",
    "flat_slices",
    "link",
    "open_checkpoint",
    "part_slices",
    "prune",
    "save_checkpoint",
    "wait_for_saves",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
