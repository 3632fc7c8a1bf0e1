"""Checks that an adapter fits a model, by the headers of both: nothing is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swift.checkpoint import MANIFEST, read_manifest
from swift.errors import ModelError
from swift.models import read_config
from swift.models.adapter_file import ADAPTER_WEIGHTS, kind_of, read_adapter_config
from swift.models.files import SafetensorsFolder
from swift.terminal import say_nothing
from swift.untrusted import typed_path

_MATRIX = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_A\.(?:[^.]+\.)?weight")
_LAYER = re.compile(r"\.\d+\.")


def read_adapter(folder: Path) -> dict[str, Any]:
    """Return the configuration of an adapter; raise `ModelError` if it is not one."""
    config = read_adapter_config(folder)
    if kind_of(config) != "LORA":
        raise ModelError(
            f"{folder} is an adapter of type {kind_of(config)}, but inference engines support LoRA only.",
            hint=f"Merge it into its model (swift export {folder} --to hf), and serve the result.",
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"{folder} is not a complete adapter: {ADAPTER_WEIGHTS} is missing.", hint="Copy it again.")
    return config


def check_fit(adapter: Path, model: Path) -> None:
    """Raise `ModelError` for an adapter with other modules or shapes than the model, or trained on other weights.

    Names of models are not compared: the same model may be a hub id here and a folder there.
    """
    config = read_adapter(adapter)
    base = config.get("base_model_name_or_path")
    base_named = f" (its base model is {base})" if base else ""
    weights = SafetensorsFolder(model)
    packed = "quantization_config" in read_config(model)
    for module, inputs, outputs in _modules(SafetensorsFolder(adapter, file=ADAPTER_WEIGHTS)):
        found = _weight_of(module, weights)
        if found is None:
            if packed or not _has_such(module, weights):
                continue  # the model fuses several modules into one tensor
            raise _misfit(adapter, model, f"the model has no module {module}{base_named}")
        there = weights.shape(found)
        if not packed and len(there) == 2 and there not in ((outputs, inputs), (inputs, outputs)):
            shape = f"{found} has shape {_shape(there)} instead of {_shape((outputs, inputs))}"
            raise _misfit(adapter, model, f"{shape}{base_named}")
    _check_origin(adapter, model, base_named)


def _misfit(adapter: Path, model: Path, reason: str) -> ModelError:
    return ModelError(
        f"The adapter {adapter} does not fit {model}: {reason}.",
        hint="Serve it with the model that it was trained on.",
    )


def _modules(adapter: SafetensorsFolder) -> Iterator[tuple[str, int, int]]:
    """Yield (module, inputs, outputs) of each pair of matrices."""
    for name in adapter.names():
        match = _MATRIX.fullmatch(name)
        partner = name.replace(".lora_A.", ".lora_B.")
        if match is not None and partner in adapter:
            yield match["module"], adapter.shape(name)[-1], adapter.shape(partner)[0]


def _weight_of(module: str, weights: SafetensorsFolder) -> str | None:
    """Return the weight of a module; files may have the prefix of the base model, or lack it."""
    inner = module.partition(".")[2]
    return next((each for each in (f"{module}.weight", f"{inner}.weight") if each in weights), None)


def _has_such(module: str, weights: SafetensorsFolder) -> bool:
    """Return whether the model has that module in any layer.

    If it has, one that is not there belongs to another model.
    """
    _, layer, kind = module.rpartition(_LAYER.findall(module)[-1]) if _LAYER.search(module) else ("", "", "")
    return bool(layer) and any(name.endswith(f".{kind}.weight") for name in weights.names())


def _check_origin(adapter: Path, model: Path, base: str) -> None:
    """Check an adapter by the weights that its checkpoint names; shapes may agree where these do not."""
    if not (adapter / MANIFEST).is_file():
        return
    manifest = read_manifest(adapter)
    config: Any = manifest.config
    path = typed_path(str(config["model"]["path"]), "The model", ModelError)
    if path.is_dir() and path.resolve() == model.resolve():
        return
    from swift.config.sections import ModelSection
    from swift.models import HfSource

    source = HfSource(str(model), model, ModelSection(path=str(model)), seed=0, say=say_nothing)
    if source.fingerprint != manifest.model_fingerprint:
        raise _misfit(adapter, model, f"it was trained on other weights{base}")


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
