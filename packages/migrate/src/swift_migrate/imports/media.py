"""Remarks for recipes that train models with images, video or audio."""

from __future__ import annotations

import re
from pathlib import Path

from swift.errors import SwiftError
from swift.models import read_config
from swift_migrate.imports.recipe import RecipeImport

_NAMES = re.compile(
    r"(?<![a-z])(vl|vlm|omni|vision|audio|multimodal|ocr|ovis|janus)(?![a-z])"
    r"|internvl|llava|cogvlm|smolvlm|pixtral|paligemma|idefics|florence|mplug|molmo|moondream"
    r"|minicpm[-_][vo](?![a-z])|glm[-_]?4(\.\d+)?v(?![a-z])"
)
"""A part of the names of such models."""
_PARTS = frozenset({"vision_config", "audio_config", "thinker_config", "vision_tower", "mm_vision_tower"})
"""Keys of their config.json."""


def note_media(run: RecipeImport) -> None:
    """Note which media of the rows are trained on."""
    name = str(run.get("model.path") or "")
    if name and reads_media(name):
        run.changed(
            run.settings["model.path"].origin,
            name,
            "the model reads more than text: images, videos (as frames) and audio of the rows are used, as far as its "
            "processor supports them",
        )


def reads_media(name: str) -> bool:
    """Return whether a model reads more than text: by its config.json if it is here, else by its name."""
    folder = Path(name)
    try:
        if (folder / "config.json").is_file():
            return not _PARTS.isdisjoint(read_config(folder))
    except (OSError, ValueError, SwiftError):
        pass  # not a folder, or a file that the run itself refuses
    return _NAMES.search(name.rstrip("/").rpartition("/")[2].lower()) is not None
