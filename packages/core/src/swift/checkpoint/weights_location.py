"""Locates the weights of a run, a checkpoint, an adapter, a model folder or a hub id.

Nothing here imports torch: `swift serve` loads the weights in another process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from swift.checkpoint.checksums import check_sizes, check_sums
from swift.checkpoint.copies import on_this_machine
from swift.checkpoint.folders import LAST, find_checkpoint, whole_checkpoints
from swift.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from swift.config.media import LIMITS
from swift.config.sections import ModelSection
from swift.errors import CheckpointError, ModelError
from swift.models.adapter_file import ADAPTER_CONFIG, read_adapter_config
from swift.models.config_file import CONFIG
from swift.models.longer_context import check_servable
from swift.models.stored_task import settings_of_adapter, settings_of_folder
from swift.models.trust import section_from_file
from swift.terminal import waiting
from swift.untrusted import read_json_object, typed_path

_UNFINISHED = re.compile(r"(checkpoint-\d+)(?:\.\w+)?\.tmp")
"""Name of a checkpoint until it is complete, and while it is being replaced or removed."""

OBJECTIVE = "swift_objective.json"
"""File of an export with the objective and system message of its run, where they decide what the model returns."""


@dataclass(frozen=True)
class WeightsLocation:
    """Model and adapter that hold the weights."""

    weights: ModelSection
    adapter: Path | None = None
    system: str | None = None
    """The system message of the run's data section."""
    objective: Mapping[str, Any] = field(default_factory=dict)
    """The `objective` section of the run; empty where it is not known."""
    pixels: Mapping[str, Any] = field(default_factory=dict)
    """The limits of images and videos of the run's data section: 'max_pixels', 'video_fps', ..."""


def find_weights(name: str, *, adapter: Path | None = None, trust_remote_code: bool = False) -> WeightsLocation:
    """Return the location of `name`: of a run, its last checkpoint; of an adapter, with its base model.

    `trust_remote_code` is the user's choice; files cannot set it.
    """
    if adapter is not None:
        check_weights_of(adapter)
    name = on_this_machine(name)
    path = typed_path(name, "The model", ModelError)
    is_run = (path / LAST).exists() or (path.is_dir() and bool(whole_checkpoints(path)))
    if is_run or (path / MANIFEST).is_file():
        return _of_checkpoint(_whole(path), adapter, trust_remote_code)
    if path.is_dir():
        check_finished(path)
    if (path / ADAPTER_CONFIG).is_file():
        config = read_adapter_config(path)
        base = config.get("base_model_name_or_path")
        if not base:
            raise ModelError(
                f"The adapter {path} does not name its base model.", hint="Pass it: --model BASE --adapters ADAPTER"
            )
        check_weights_of(Path(base))
        settings = settings_of_adapter(path, config)
        section = ModelSection(path=base, trust_remote_code=trust_remote_code, **settings)
        return WeightsLocation(section, path, **_of_export(path))
    settings = settings_of_folder(path) if (path / CONFIG).is_file() else {}
    section = ModelSection(path=name, trust_remote_code=trust_remote_code, **settings)
    return WeightsLocation(section, adapter, **_of_export(path))


def _of_export(folder: Path) -> dict[str, Any]:
    """Return the objective and the system message that an export has stored; empty for other folders."""
    file = folder / OBJECTIVE
    stored = read_json_object(file, ModelError) if file.is_file() else {}
    objective, system = stored.get("objective"), stored.get("system")
    if not isinstance(objective, dict):
        return {}
    return {"objective": objective, "system": system if isinstance(system, str) else None}


def display_name(name: str) -> str:
    """Return a short name: the run's for a run and its checkpoints, a folder's own, or the hub id."""
    path = typed_path(name, "The model", ModelError)
    if not path.is_dir():
        return name
    whole = path.resolve()
    in_a_run = (whole / MANIFEST).is_file() and (whole.parent / "args.json").is_file()
    return whole.parent.name if in_a_run else whole.name


def _whole(path: Path) -> Path:
    if _UNFINISHED.fullmatch(path.resolve().name):
        raise _unfinished(path.resolve())
    return find_checkpoint(path)


def check_finished(path: Path) -> None:
    """Refuse an incomplete checkpoint or run before it is taken for a model's folder."""
    whole = path.resolve()
    if _UNFINISHED.fullmatch(whole.name) or (whole / "state").is_dir():
        raise _unfinished(whole)
    if (whole / "args.json").is_file() and not any((whole / name).is_file() for name in (CONFIG, ADAPTER_CONFIG)):
        raise CheckpointError(
            f"The run {path} has no complete checkpoint yet.",
            hint="Wait until the run reports: saved checkpoint-...",
        )


def _unfinished(folder: Path) -> CheckpointError:
    others = [each.name for each in whole_checkpoints(folder.parent).values()]
    there_are = f"Complete ones: {', '.join(others[-8:])}." if others else "Wait until the run has saved it."
    return CheckpointError(
        f"{folder} is not a complete checkpoint: it is still being written, its save was interrupted, or its "
        f"{MANIFEST} was removed.",
        hint=f"{there_are} {_alone(folder)}",
    )


def _alone(folder: Path) -> str:
    """Return the hint for a checkpoint of which only the manifest is missing."""
    files = "adapter_*" if (folder / ADAPTER_CONFIG).is_file() else "*.json, *.jinja and *.safetensors"
    return f"If you trust its weights, copy {files} into another folder, and use that."


def check_weights_of(folder: Path) -> None:
    """Refuse a checkpoint with files missing or cut off, or with altered weights; other folders have no checksums."""
    if (folder / MANIFEST).is_file():
        _check_files(folder, read_manifest(folder))


def _check_files(folder: Path, manifest: Manifest) -> None:
    """Refuse a checkpoint with files missing or cut off, or with altered weights; optimizer states are not read."""
    if not manifest.files:
        raise CheckpointError(f"{folder / MANIFEST} lists no files.", hint=_alone(folder))
    hint = "Copy it again."
    check_sizes(folder, manifest.files, if_missing=partial(_written_again, folder, manifest), hint=hint)
    weights = {name: record for name, record in manifest.files.items() if "/" not in name}
    with waiting(f"Verifying {folder}"):
        check_sums(folder, weights, hint=hint)


def _written_again(folder: Path, manifest: Manifest, name: str) -> str:
    """Return the hint for a missing file: weights ready to load can be exported again from the training state."""
    if "/" in name:
        return _alone(folder)
    return f"Type: swift export {folder} --to {'hf' if manifest.adapter is None else 'adapter'}"


def _of_checkpoint(folder: Path, adapter: Path | None, trust_remote_code: bool) -> WeightsLocation:
    manifest = read_manifest(folder)
    config: Any = manifest.config
    if not isinstance(config.get("model"), dict):
        raise CheckpointError(f"{folder / MANIFEST} does not name the trained model.", hint=_alone(folder))
    _check_files(folder, manifest)
    model = section_from_file(
        ModelSection.model_validate(config["model"]), folder / MANIFEST, trust_remote_code=trust_remote_code
    )
    data = config.get("data", {})
    system = data.get("system")
    pixels = {name: data[name] for name in LIMITS if isinstance(data.get(name), int | float)}
    objective = config.get("objective", {})
    if manifest.adapter is not None:
        if not (folder / ADAPTER_CONFIG).is_file():
            raise ModelError(
                f"{folder} has no adapter in PEFT's format.", hint=f"Type: swift export {folder} --to adapter"
            )
        check_servable(model, folder)
        if model.path is not None:
            check_weights_of(Path(model.path))
        return WeightsLocation(model, adapter or folder, system, objective, pixels)
    if not (folder / CONFIG).is_file():
        raise ModelError(
            f"{folder} has no weights in Hugging Face format.", hint=f"Type: swift export {folder} --to hf"
        )
    return WeightsLocation(
        model.model_copy(update={"path": str(folder), "random_weights": False}), adapter, system, objective, pixels
    )
