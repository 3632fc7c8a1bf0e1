"""A model to ask, from whatever the user names: a run, a checkpoint, an adapter, a model folder, a hub id."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swift.checkpoint.folders import LAST, find_checkpoint, whole_checkpoints
from swift.checkpoint.manifest import MANIFEST, read_manifest
from swift.config.sections import ModelSection
from swift.errors import ModelError, UsageError, did_you_mean
from swift.models.precision import DTYPES, resolve_dtype
from swift.models.source import open_source

ADAPTER_FILE = "adapter_config.json"


@dataclass
class Speaker:
    """A model in evaluation mode, its tokenizer, and what they were loaded from."""

    model: Any
    tokenizer: Any
    device: str
    system: str | None
    """The system message of the run's data section."""


@dataclass(frozen=True)
class Place:
    """Where the weights lie."""

    weights: ModelSection
    adapter: Path | None = None
    system: str | None = None


def load_speaker(
    name: str,
    *,
    adapter: Path | None = None,
    dtype: str = "auto",
    device: str | None = None,
    say: Callable[[str], None],
) -> Speaker:
    """Load weights (and adapter) for asking."""
    place = find_weights(name, adapter=adapter)
    device = _device(device)
    if dtype not in ("auto", *DTYPES):
        raise UsageError(
            f"There is no precision {dtype!r}.{did_you_mean(dtype, DTYPES)}", hint=f"There are: {', '.join(DTYPES)}."
        )
    precision, _ = resolve_dtype(dtype, device)
    source = open_source(place.weights, say=say)
    tokenizer = source.tokenizer
    model: Any = source.build(dtype=DTYPES[precision], device=device)
    if place.adapter is not None:
        model = _with_adapter(model, place.adapter)
    model.eval()
    return Speaker(model, tokenizer, device, place.system)


def _device(wanted: str | None) -> str:
    """Where to load the model; a GPU where there is one and nothing else was said."""
    if wanted is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(wanted).type
    except RuntimeError:
        raise UsageError(f"There is no device {wanted!r}.", hint="There are: cpu, cuda, cuda:1, ...") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"There is no GPU that could be {wanted!r} here.", hint="Leave it out to use the CPU.")
    return wanted


def find_weights(name: str, *, adapter: Path | None = None) -> Place:
    """What `name` stands for. A run means its last checkpoint; a checkpoint knows the model it was trained from."""
    path = Path(name).expanduser()
    is_run = (path / LAST).exists() or (path.is_dir() and bool(whole_checkpoints(path)))
    if is_run or (path / MANIFEST).is_file():
        return _of_checkpoint(find_checkpoint(path), adapter)
    if (path / ADAPTER_FILE).is_file():
        base = json.loads((path / ADAPTER_FILE).read_text(encoding="utf-8")).get("base_model_name_or_path")
        if not base:
            raise ModelError(f"{path} does not say which model it adapts.", hint="Type: --model BASE --adapter ADAPTER")
        return Place(ModelSection(path=base), path)
    return Place(ModelSection(path=name), adapter)


def _of_checkpoint(folder: Path, adapter: Path | None) -> Place:
    manifest = read_manifest(folder)
    config: Any = manifest.config
    model = ModelSection.model_validate(config["model"])
    system = config["data"].get("system")
    if manifest.adapter is not None:
        if not (folder / ADAPTER_FILE).is_file():
            raise ModelError(
                f"{folder} holds no adapter ready to load.", hint=f"Type: swift export {folder} --to adapter"
            )
        return Place(model, adapter or folder, system)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} holds no weights ready to load.", hint=f"Type: swift export {folder} --to hf")
    return Place(model.model_copy(update={"path": str(folder), "random_weights": False}), adapter, system)


def _with_adapter(model: Any, folder: Path) -> Any:
    from peft import PeftModel

    if not (folder / ADAPTER_FILE).is_file():
        raise ModelError(f"{folder} is not an adapter: {ADAPTER_FILE} is missing.", hint="Check --adapter.")
    return PeftModel.from_pretrained(model, str(folder), is_trainable=False)
