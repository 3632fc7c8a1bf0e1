"""`manifest.json`: everything about a checkpoint that is not a tensor, and what its files must look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import xxhash
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from swift.checkpoint.records import FileRecord, write_json
from swift.errors import CheckpointError

FORMAT = 1
"""Version of the checkpoint format that this swift writes, and the newest that it reads."""
MANIFEST = "manifest.json"


def installed_versions() -> dict[str, str]:
    """Versions of what numbers depend on."""
    found = {}
    for name in ("swift-core", "torch", "transformers", "peft"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


class Manifest(BaseModel):
    """The facts of one checkpoint. `config` is the resolved configuration, so that a checkpoint alone is enough."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    step: int = Field(description="Optimizer steps completed")
    rows_per_step: int = Field(description="Rows per global batch; with step and seed this is the place in the data")
    seed: int
    model_fingerprint: str
    data_fingerprint: str
    backend: str
    config: dict[str, JsonValue] = Field(default_factory=dict)
    plan: dict[str, JsonValue] = Field(default_factory=dict)
    schedule: dict[str, JsonValue] = Field(default_factory=dict)
    adapter: dict[str, JsonValue] | None = None
    metrics: dict[str, float | None] = Field(default_factory=dict)
    facts: dict[str, JsonValue] = Field(default_factory=dict, description="What the backend handed over")
    plugins: dict[str, str] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=installed_versions)
    files: dict[str, FileRecord] = Field(default_factory=dict)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it with a checksum over itself."""
    value = manifest.model_dump(mode="json")
    write_json(folder / MANIFEST, {**value, "checksum": _checksum(value)})


def read_manifest(folder: Path) -> Manifest:
    """Read and check it; `CheckpointError` says what is wrong."""
    path = folder / MANIFEST
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} is not a checkpoint: it has no {MANIFEST}.", hint="Name a folder checkpoint-<step> of a run."
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from None
    found = value.get("format") if isinstance(value, dict) else None
    if not isinstance(found, int):
        raise CheckpointError(f"{path} is not the manifest of a swift checkpoint: it names no format.")
    if found > FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {found}; this swift reads formats up to {FORMAT}.",
            hint="Type: pip install --upgrade swift-core",
        )
    checksum = value.pop("checksum", None)
    if checksum != _checksum(value):
        raise CheckpointError(
            f"{path} was altered after it was written (its checksum differs).",
        )
    try:
        return Manifest.model_validate(value)
    except ValidationError as error:
        raise CheckpointError(f"{path} is not a valid manifest: {error.errors()[0]['msg']}.") from None


def _checksum(value: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
