"""Rotary positions scaled for sequences longer than those that a model was pretrained on.

This module does not import torch: `swift config show` asks with the content of config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.config.sections import ModelSection
from swift.errors import ModelError
from swift.models.config_file import CONFIG, StoredConfig, read_config
from swift.models.positions import count_of, rope_kind, ropes

_LIKE_LLAMA = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
"""The bounds that Llama 3.1 was published with."""
_OF_ALL = "full_attention"
"""Layers that see the whole text, where others see a window of it, which needs no other positions."""


def check_servable(section: ModelSection, path: Path) -> None:
    """Refuse an adapter of a model whose positions are scaled: engines would load the base model without it."""
    if section.rope_scaling is not None:
        raise ModelError(
            f"The adapter {path} was trained with --rope_scaling {section.rope_scaling}, which its base model lacks.",
            hint=f"Merge it first: swift export {path} --to hf --out DIR",
        )


def config_in_force(folder: Path, section: ModelSection) -> dict[str, Any]:
    """Return the content of config.json, with the scaling of rotary positions that the user chose."""
    content = read_config(folder)
    if section.rope_scaling is None:
        return content
    text = content.get("text_config")
    if isinstance(text, dict):
        return {**content, "text_config": _scaled(text, folder, section)}
    return _scaled(content, folder, section)


def check_scalable(config: Any, section: ModelSection) -> None:
    """Raise `ModelError` for a model of transformers without rotary positions, given as its own configuration."""
    text = config.get_text_config()
    if not isinstance(getattr(text, "rope_parameters", None), dict):
        raise ModelError(
            f"{section.path} is a {text.model_type} model, which has no rotary positions that can be scaled.",
            hint="Leave out --rope_scaling and --max_model_len.",
        )


def _scaled(text: Mapping[str, Any], folder: Path, section: ModelSection) -> dict[str, Any]:
    kind, length, count = section.rope_scaling, section.max_model_len, count_of(StoredConfig(text))
    assert length is not None
    for rope in ropes(StoredConfig(text)):
        if rope_kind(rope) != "default":
            raise ModelError(
                f"{folder / CONFIG} already scales rotary positions ({rope_kind(rope)}).",
                hint="Leave out --rope_scaling, or edit the file: remove rope_scaling there, then type it again.",
            )
    if count is None:
        raise ModelError(f"{folder / CONFIG} does not give the model's number of positions: max_position_embeddings.")
    if length <= count:
        raise ModelError(
            f"{folder} has {count:,} positions, and --max_model_len {length} needs no more.",
            hint="Leave out --rope_scaling and --max_model_len.",
        )
    scaling: dict[str, Any] = {"rope_type": kind, "factor": length / count}
    changed = {**text}
    if kind != "linear":  # whose positions are read as `factor` times those of the model
        scaling["original_max_position_embeddings"] = count
        changed["max_position_embeddings"] = length
    if kind == "llama3":
        scaling |= _LIKE_LLAMA
    own = text.get("rope_parameters")
    if not isinstance(own, dict):
        changed["rope_scaling"] = scaling
    elif isinstance(own.get(_OF_ALL), dict):
        changed["rope_parameters"] = {**own, _OF_ALL: {**own[_OF_ALL], **scaling}}
    else:
        changed["rope_parameters"] = {**own, **scaling}
    return changed
