"""Where the parts of weights lie that an optimizer updates: for those that must see more than single elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from swift.contracts import Matrix, Placement
from swift.models.names import base_model, canonical_parameters, whole_shape
from swift.models.sizes import config_of_layer

Region = tuple[slice, ...]
_QUERIES = frozenset({"q_proj", "wq", "query"})
_KEYS = frozenset({"k_proj", "wk", "key"})
"""What modules that make queries and keys are called."""


def add_placements(
    groups: Sequence[dict[str, Any]],
    model: torch.nn.Module,
    *,
    region_of: Callable[[torch.Tensor], Region] | None = None,
    processes: Any = None,
) -> None:
    """Add `placements` to parameter groups, whose `params` are those of the model.

    `region_of` returns which part of a parameter this process holds, and `processes` is the group that holds all parts;
    without them parameters are whole.
    """
    pieces = {id(parameter): found for found, parameter in canonical_parameters(model)}
    rows = _vocabularies(model)
    heads = _heads_of(model)
    for group in groups:
        group["placements"] = [
            Placement(
                name=name,
                shape=(shape := whole_shape(parameter)),
                region=region_of(parameter) if region_of else tuple(slice(0, size) for size in shape),
                matrices=tuple(Matrix(piece.name, piece.start, piece.shape) for piece in pieces[id(parameter)]),
                vocabulary=id(parameter) in rows,
                heads=heads(name, shape),
                processes=processes,
            )
            for name, parameter in zip(group["names"], group["params"], strict=True)
        ]


def _vocabularies(model: torch.nn.Module) -> set[int]:
    """Return the ids of the parameters whose rows are tokens or labels: embeddings and heads."""
    found = {id(each.weight) for each in model.modules() if isinstance(each, torch.nn.Embedding)}
    found |= {id(parameter) for name, parameter in model.named_parameters() if _is_head(name)}
    return found


def _is_head(name: str) -> bool:
    """Return whether a parameter belongs to a head, tied to an embedding or not."""
    return any(part in ("lm_head", "score", "embed_out", "output_projection") for part in name.split("."))


def _heads_of(model: torch.nn.Module) -> Callable[[str, Sequence[int]], int | None]:
    """Return how many heads the rows of a weight of this name and shape are; None of one that makes none."""
    config: Any = getattr(base_model(model), "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config

    def heads(name: str, shape: Sequence[int]) -> int | None:
        parts = name.split(".")
        makes_queries, makes_keys = _QUERIES.intersection(parts), _KEYS.intersection(parts)
        if len(shape) != 2 or not (makes_queries or makes_keys):
            return None
        layer = config_of_layer(text, next((int(part) for part in parts if part.isdigit()), 0))
        queries = getattr(layer, "num_attention_heads", None)
        count = queries if makes_queries else getattr(layer, "num_key_value_heads", None) or queries
        width = getattr(layer, "head_dim", None) or (getattr(layer, "hidden_size", 0) // queries if queries else None)
        # Factors of adapters and weights of a vision encoder have other rows.
        return count if count and width and shape[0] == count * width else None

    return heads
