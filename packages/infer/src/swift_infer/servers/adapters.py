"""Adapters of vision and audio encoders, which servers cannot load."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from swift.errors import ModelError
from swift.models.adapter_file import ADAPTER_WEIGHTS
from swift.models.files import SafetensorsFolder

_ENCODERS = frozenset({"visual", "vision_tower", "vision_model", "audio_tower", "multi_modal_projector", "connector"})
"""Names of encoders and projectors in transformers' models."""


def encoder_trait(folder: Path) -> str | None:
    """Return which encoder an adapter changes, as the end of a sentence about it; None if it changes none."""
    if not (folder / ADAPTER_WEIGHTS).is_file():
        return None
    names = SafetensorsFolder(folder, file=ADAPTER_WEIGHTS).names()
    found = next((name for name in names if _ENCODERS & set(name.split("."))), None)
    return (
        found and f"adapts a vision or audio encoder ({found.removeprefix('base_model.model.').partition('.lora_')[0]})"
    )


def check_language_only(adapters: Iterable[Path], server: str) -> None:
    """Raise `ModelError` for adapters of encoders, which a server would ignore silently."""
    for folder in adapters:
        if trait := encoder_trait(folder):
            raise unmerged(folder, trait, server)


def unmerged(folder: Path, trait: str, server: str) -> ModelError:
    """Return the error of an adapter that a server cannot put on its model; `trait` ends a sentence about it."""
    return ModelError(
        f"The adapter {folder} {trait}, which {server} cannot serve with a base model.",
        hint="Merge it and serve the result: swift export RUN --to hf --out merged && swift serve merged",
    )
