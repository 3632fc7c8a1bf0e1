"""`manifest.json`: everything about a checkpoint that is not a tensor, and what its files must look like."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import xxhash
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
)

from swift.checkpoint.checksums import FileRecord, write_json
from swift.config.own_options import FullOptions, LoraOptions
from swift.config.problems import first_problem
from swift.config.sections import Config
from swift.errors import CheckpointError
from swift.installation import pip_install
from swift.untrusted import inside, read_json

FORMAT = 1
"""Version of the checkpoint format that this swift writes, and the newest that it reads."""
MANIFEST = "manifest.json"
FOLDER_NAME = re.compile(r"checkpoint-(\d+)")
_LARGEST = 256 << 20
"""Bytes of a manifest: that of a run on ten thousand processes has some megabytes."""
_SECTIONS = ("model", "data", "tuner", "optim", "train")
"""Sections of the configuration that other commands act on; the others are their plugins' to check."""

Count = Annotated[StrictInt, Field(ge=0, lt=1 << 53)]


@cache
def installed_versions() -> dict[str, str]:
    """Versions of what numbers depend on."""
    found = {}
    for name in ("swift-core", "torch", "transformers", "peft"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


class Best(BaseModel):
    """The best evaluation so far, as `swift.train.best` keeps it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: FiniteFloat | None = None
    step: Count | None = None
    evaluations_since: Count = 0
    saved_value: FiniteFloat | None = None
    saved_step: Count | None = None


class Progress(BaseModel):
    """A run's progress as core keeps it, among the manifest's `facts`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    best: Best = Best()
    epoch: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    batch_schedule: dict[str, JsonValue] = {}
    """What an objective's own batch schedule keeps (`BatchSchedule.state`)."""


class Scheduled(BaseModel):
    """Recorded facts of the schedule; an imported checkpoint may have none."""

    model_config = ConfigDict(frozen=True, extra="allow")

    total_steps: Count | None = None
    peak: FiniteFloat | None = None


class RoleRecord(BaseModel):
    """The facts of one role in a checkpoint, besides the policy's, which are the manifest's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: Count = Field(description="Updates that were made of it")
    model_fingerprint: StrictStr
    adapter: dict[str, JsonValue] | None = None
    config: dict[str, JsonValue] = Field(default_factory=dict, description="Its sections: model, tuner, optim")


class Manifest(BaseModel):
    """The facts of one checkpoint. `config` is the resolved configuration, so that a checkpoint alone is enough."""

    model_config = ConfigDict(frozen=True)

    format: Annotated[StrictInt, Field(ge=1, le=FORMAT)] = FORMAT
    step: Count = Field(description="Optimizer steps completed")
    rows_per_step: Count = Field(description="Rows per global batch; with step and seed, the position in the data")
    seed: StrictInt
    model_fingerprint: StrictStr
    data_fingerprint: StrictStr
    backend: StrictStr
    config: dict[str, JsonValue] = Field(default_factory=dict)
    layout: dict[str, JsonValue] = Field(default_factory=dict)
    schedule: dict[str, JsonValue] = Field(default_factory=dict)
    adapter: dict[str, JsonValue] | None = None
    roles: dict[str, RoleRecord] = Field(default_factory=dict, description="Other models that are trained with it")
    metrics: dict[str, float | None] = Field(default_factory=dict)
    facts: dict[str, JsonValue] = Field(default_factory=dict, description="Facts of the backend")
    plugins: dict[str, str] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=installed_versions)
    files: dict[str, FileRecord] = Field(default_factory=dict)

    @field_validator("config")
    @classmethod
    def _check_config(cls, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in _SECTIONS:
            section: Any = Config.model_fields[name].annotation
            _check(section, config.get(name, {}), f"{name}.")
        _check_tuner(config.get("tuner"))
        others = [name for name, section in config.items() if not isinstance(section, dict)]
        if others:
            raise ValueError(f"{others[0]} must be an object")
        return config

    @field_validator("facts")
    @classmethod
    def _check_facts(cls, facts: dict[str, JsonValue]) -> dict[str, JsonValue]:
        _check(Progress, facts.get("progress", {}), "progress.")
        for name in facts:
            if name.rpartition("/")[2] == "scaler" and not _is_of_numbers(facts[name] or {}):
                raise ValueError(f"{name} must be an object of numbers")
        return facts

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, schedule: dict[str, JsonValue]) -> dict[str, JsonValue]:
        _check(Scheduled, schedule)
        return schedule


def _check(model: type[BaseModel], value: Any, where: str = "") -> None:
    """Raise `ValueError`, which names the first problem below `where`, unless the model takes the value."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"{where}{first_problem(error)}") from None


def _is_of_numbers(value: JsonValue) -> bool:
    return isinstance(value, dict) and all(isinstance(each, int | float) for each in value.values() if each)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it with a checksum over itself."""
    value = manifest.model_dump(mode="json")
    write_json(folder / MANIFEST, {**value, "checksum": _checksum(value)})


def read_manifest(folder: Path) -> Manifest:
    """Read and check it; `CheckpointError` says what is wrong."""
    path = folder / MANIFEST
    if not path.exists() and not path.is_symlink():
        raise CheckpointError(
            f"{folder} is not a checkpoint: it has no {MANIFEST}.", hint="Name a folder checkpoint-<step> of a run."
        )
    value = read_json(path, CheckpointError, limit=_LARGEST)
    found = value.get("format") if isinstance(value, dict) else None
    if type(found) is not int:
        raise CheckpointError(f"{path} is not the manifest of a swift checkpoint: it names no format.")
    if found > FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {found}; this swift reads formats up to {FORMAT}.",
            hint=f"Type: {pip_install('swift-core', upgrade=True)}",
        )
    checksum = value.pop("checksum", None)
    if checksum != _checksum(value):
        raise CheckpointError(f"{path} was altered after it was written (its checksum differs).")
    try:
        manifest = Manifest.model_validate(value)
    except ValidationError as error:
        raise CheckpointError(f"{path} is not a valid manifest: {first_problem(error)}.") from None
    for name in manifest.files:
        inside(folder, name, CheckpointError, source=f"{path} (files)")
    if manifest.adapter is not None:
        from swift.models.adapter_file import checked_adapter

        checked_adapter(manifest.adapter, f"{path} (adapter)", CheckpointError)
    return manifest


def _checksum(value: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _check_tuner(section: Any) -> None:
    """Refuse a tuner that is not installed, and options that core's own tuners do not take."""
    from swift.plugins.discover import list_plugins

    values = section if isinstance(section, dict) else {}
    kind = values.get("kind", "lora")
    tuners: dict[str, type[BaseModel]] = {"full": FullOptions, "lora": LoraOptions}
    own = tuners.get(kind)
    if own is None and kind not in {entry.name for entry in list_plugins("swift.tuners")}:
        raise ValueError(f"tuner.kind {kind!r} is not installed")
    if own is not None:
        _check(own, {key: value for key, value in values.items() if key in own.model_fields}, "tuner.")
