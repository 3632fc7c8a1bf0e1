"""What was downloaded from the hub before, and how long to wait for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

REACH_SECONDS = 10.0
"""How long to wait for the hub before saying that it cannot be reached."""


def hub_cache() -> Path:
    """Return the folder of the hub cache."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub"))


def cached_ids(kind: Literal["models", "datasets"]) -> list[str]:
    """Return the ids in the hub cache."""
    folders = hub_cache().glob(f"{kind}--*")
    return sorted(folder.name.removeprefix(f"{kind}--").replace("--", "/") for folder in folders)
