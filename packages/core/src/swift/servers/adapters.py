"""Adapters that change how a model sees or hears: no server puts these on its model as they were trained."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from swift.errors import ModelError
from swift.models.adapter_file import ADAPTER_WEIGHTS
from swift.models.files import SafetensorsFolder

_BESIDE_LANGUAGE = frozenset(
    {"visual", "vision_tower", "vision_model", "audio_tower", "multi_modal_projector", "connector"}
)
"""What models of transformers call their towers and what leads from these to the language model."""


def beside_language(folder: Path) -> str | None:
    """Return that an adapter changes how its model sees or hears, as the end of a sentence about it; None if not."""
    if not (folder / ADAPTER_WEIGHTS).is_file():
        return None
    names = SafetensorsFolder(folder, file=ADAPTER_WEIGHTS).names()
    found = next((name for name in names if _BESIDE_LANGUAGE & set(name.split("."))), None)
    return found and f"adapts what sees or hears ({found.removeprefix('base_model.model.').partition('.lora_')[0]})"


def check_language_alone(adapters: Iterable[Path], server: str) -> None:
    """Refuse adapters of towers, which a server would leave out or put on other tokens, and say nothing."""
    for folder in adapters:
        if trait := beside_language(folder):
            raise unmerged(folder, trait, server)


def unmerged(folder: Path, trait: str, server: str) -> ModelError:
    """Return the error of an adapter that a server cannot put on its model; `trait` ends a sentence about it."""
    return ModelError(
        f"The adapter {folder} {trait}, which {server} cannot serve with a base model.",
        hint="Merge it and serve the result: swift export RUN --to hf --out merged && swift serve merged",
    )
