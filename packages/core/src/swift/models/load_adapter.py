"""Putting an adapter from a folder on a model, as PEFT does it: whole, of the right shapes, and nothing next to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from swift.errors import ModelError, listed
from swift.models.adapter_file import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    check_patterns,
    checked_adapter,
    read_adapter_config,
)
from swift.models.files import SafetensorsFolder
from swift.models.names import ADAPTER, adapter_names
from swift.models.opening import as_model_error
from swift.models.peft_targets import with_modules_named
from swift.models.quiet import without_bitsandbytes
from swift.models.weights_check import check_finite
from swift.safetensors_header import FLOATING

_OWN = "Use the model that the adapter was trained on, or copy the adapter again."


def peft_config(config: Mapping[str, Any], model: torch.nn.Module, source: str) -> Any:
    """Return PEFT's configuration of an adapter for this model; `ModelError` where `source` holds no such thing."""
    settings = with_modules_named(checked_adapter(config, source), model)
    check_patterns(settings, [name for name, _ in model.named_modules()], source)
    with without_bitsandbytes():
        from peft import PeftConfig
    with as_model_error(f"{source} is not a valid PEFT configuration", hint=_OWN):
        # What PEFT would import to find the class of the model, which already exists.
        return PeftConfig.from_peft_type(**{key: value for key, value in settings.items() if key != "auto_mapping"})


def attach_adapter(
    model: torch.nn.Module, folder: Path, *, trainable: bool, dropout: float | None = None
) -> torch.nn.Module:
    """Return the model with the adapter in `folder` on it, and with another dropout than its own where one is given."""
    with without_bitsandbytes():
        from peft import PeftModel

    adapter_config = read_adapter_config(folder)
    weights = _weights(folder, adapter_config)
    config = peft_config(adapter_config, model, str(folder / ADAPTER_CONFIG))
    config.inference_mode = not trainable
    if dropout is not None:
        config.lora_dropout = dropout  # of LoRA, whose tuner alone asks for it
    with without_bitsandbytes(), as_model_error(f"The adapter in {folder} does not fit this model", hint=_OWN):
        tuned: torch.nn.Module = PeftModel.from_pretrained(
            model, str(folder), ADAPTER, is_trainable=trainable, config=config
        )
        expected = set(adapter_names(tuned).values())
    missing = sorted(expected - set(weights.names()))
    if missing:
        raise ModelError(
            f"{folder / ADAPTER_WEIGHTS} lacks tensors that {ADAPTER_CONFIG} describes: {listed(missing)}.",
            hint=_OWN,
        )
    # PEFT may have saved embeddings of the model next to the adapter.
    own = {name.replace(".base_layer", "") for name, _ in tuned.named_parameters(remove_duplicate=False)}
    extra = sorted(name for name in weights.names() if name not in expected | own)
    if extra:
        raise ModelError(
            f"{folder / ADAPTER_WEIGHTS} has tensors that {ADAPTER_CONFIG} does not describe: {listed(extra)}.",
            hint=_OWN,
        )
    return tuned


def _weights(folder: Path, config: Mapping[str, Any]) -> SafetensorsFolder:
    """Return the adapter's tensors, which are numbers, finite, and of the ranks that the configuration names."""
    if not (folder / ADAPTER_WEIGHTS).exists():
        raise ModelError(f"{folder} is not a complete adapter: {ADAPTER_WEIGHTS} is missing.", hint="Copy it again.")
    weights = SafetensorsFolder(folder, file=ADAPTER_WEIGHTS)
    patterns = config.get("rank_pattern") or {}
    ranks = {config.get("r", 8), *patterns.values()}
    for name in weights.names():
        if weights.dtype(name) not in FLOATING:
            raise ModelError(
                f"{name} in {folder / ADAPTER_WEIGHTS} holds integers ({weights.dtype(name)}) instead of floats.",
                hint="Copy the adapter again.",
            )
        shape = weights.shape(name)
        # On stacked experts A has so many rows for each of them; PEFT compares them with the model.
        stacked = bool(config.get("target_parameters")) and bool(shape) and any(not shape[0] % rank for rank in ranks)
        if ".lora_A." in name and not stacked and (not shape or shape[0] not in ranks):
            raise ModelError(
                f"{name} in {folder / ADAPTER_WEIGHTS} has the shape {shape}, but {ADAPTER_CONFIG} declares rank "
                f"{' or '.join(map(str, sorted(ranks)))}.",
                hint="The two files do not belong together: copy the adapter again.",
            )
        check_finite(name, weights.read(name), folder)
    return weights
