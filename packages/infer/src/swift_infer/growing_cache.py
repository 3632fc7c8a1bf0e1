"""A cache of keys and values for decoding that has room for further tokens.

That of transformers copies its contents for every token, and its attention copies keys and values once more for every
head that shares them. Here a token is written behind the others, and heads that share keys are computed together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED = "swift_grouped"
"""Name of the attention in transformers."""
_ROOM = 64
"""Tokens that a cache has room for when it grows."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types here
    """Keys and values of one layer, which are views of tensors with room for more tokens."""

    def __init__(self) -> None:
        super().__init__()
        self._roomy: dict[str, torch.Tensor] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values with those of new tokens at the end."""
        held = self.get_seq_length()
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = self._appended("keys", held, key_states)
        self.values = self._appended("values", held, value_states)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keep these rows alone, in this order."""
        super().reorder_cache(beam_idx)
        self._roomy.clear()

    def _appended(self, name: str, held: int, new: torch.Tensor) -> torch.Tensor:
        length = held + new.shape[-2]
        roomy = self._roomy.get(name)
        if roomy is None or roomy.shape[-2] < length:
            roomy = new.new_empty((*new.shape[:-2], length + _ROOM, new.shape[-1]))
            if held:
                roomy[..., :held, :] = getattr(self, name)
            self._roomy[name] = roomy
        roomy[..., held:length, :] = new
        return roomy[..., :length, :]


def growing_cache(model: Any) -> DynamicCache:
    """Return an empty cache for a model; layers that keep something else than all keys and values have their own."""
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention like `sdpa` of transformers; for one new token, heads that share keys form one query."""
    rows, heads, length, _ = query.shape
    shared = heads // key.shape[1]
    per_head = attention_mask is not None and attention_mask.shape[1] != 1
    if length > 1 or shared == 1 or per_head or kwargs.get("position_bias") is not None:
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output
    grouped = query.reshape(rows, key.shape[1], shared, query.shape[-1])
    found = scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
    )
    return found.reshape(rows, 1, heads, found.shape[-1]), None


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
