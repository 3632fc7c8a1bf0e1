"""A model without weights: where backends begin that lay parameters out before they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from swift.models.heads import add_value_head, value_head_of
from swift.models.names import know_names

if TYPE_CHECKING:
    from swift.contracts import ModelSource


def meta_model(source: ModelSource, dtype: torch.dtype) -> torch.nn.Module:
    """Parameters without memory in `dtype`, but real buffers: rotary tables are computed, not read."""
    from accelerate import init_empty_weights  # type: ignore[import-untyped]  # has no stubs; peft requires it

    skeleton: Any = source.build(dtype=dtype, weights=False)
    with init_empty_weights(include_buffers=False):
        model: Any = type(skeleton)(skeleton.config)
        if value_head_of(skeleton) is not None:
            add_value_head(model, skeleton.config, dtype)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.tie_weights()
    model.name_or_path = skeleton.name_or_path
    read_off = getattr(source, "name_map_by", None)
    if read_off is not None:
        know_names(model, read_off(skeleton))
    built: torch.nn.Module = model
    return built
