"""Who is to answer, and how it is to be loaded, as the flags of `swift infer | chat | eval` say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Wanted:
    """How a model is to be loaded, as the flags of `swift infer | chat | eval` say it."""

    engine: str = "transformers"
    """Name of an inference engine, or the address of a server."""
    adapter: Path | None = None
    system: str | None = None
    dtype: str = "auto"
    device: str | None = None
    batch_size: int | None = None
    max_length: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    api_key: str | None = None
    trust_remote_code: bool = False
    """Whether Python code that comes with the model may run."""


def is_address(engine: str) -> bool:
    """Whether `--engine` names a server."""
    return engine.startswith(("http://", "https://"))
