"""Weights that no model can have been trained to: not finite, or not numbers with a fraction at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.errors import ModelError
from swift.models.config_file import CONFIG
from swift.models.files import SafetensorsFolder
from swift.safetensors_header import FLOATING

if TYPE_CHECKING:
    import torch

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_BLOCK = 1 << 24
"""Elements that are looked at together: what is compared takes memory of its own."""


def check_weights(files: SafetensorsFolder, config: Mapping[str, Any], folder: Path) -> None:
    """Refuse, from the headers alone, integers instead of weights, and more layers than there are weights."""
    if not files.names():
        raise ModelError(f"The weights in {folder} are empty: they contain no tensor.", hint="Copy the model again.")
    text = config.get("text_config")
    for section in (config, text if isinstance(text, dict) else {}):
        for key in _LAYERS:
            layers = section.get(key)
            if isinstance(layers, int) and layers > len(files.names()):
                raise ModelError(
                    f"{folder / CONFIG} has {key} {layers:,}, but the folder has only {len(files.names()):,} weights.",
                    hint="Check that config.json belongs to these weights.",
                )
    if "quantization_config" in config:
        return
    for name in files.names():
        if name.endswith(".weight") and files.dtype(name) not in FLOATING:
            raise ModelError(
                f"{name} in {folder} holds integers ({files.dtype(name)}), but config.json has no "
                "quantization_config, which describes how to decode them.",
                hint="Copy or download the model again, or quantize the full-precision model: swift export --quant",
            )


def check_finite(name: str, tensor: torch.Tensor, folder: Path) -> None:
    """Refuse a weight with values that are not numbers: whatever is computed with them is not a number either."""
    if not tensor.is_floating_point() or tensor.element_size() < 2 or tensor.is_meta:
        return
    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), _BLOCK):
        block = flat[start : start + _BLOCK]
        finite = block.isfinite()
        if not bool(finite.all()):
            count = int((~finite).sum())
            raise ModelError(
                f"{name} in {folder} contains NaN or infinite values (at least {count:,}).",
                hint="The training diverged or the file is damaged. Use an earlier checkpoint.",
            )
