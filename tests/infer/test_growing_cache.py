"""The cache and the attention of decoding hold and compute what those of transformers do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Gemma3TextConfig
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from swift_infer.growing_cache import GrowingLayer, grouped_attention, growing_cache

ROWS, SHARED_BY, KEY_HEADS, WIDTH = 5, 3, 2, 8


def test_growing_cache_matches_transformers() -> None:
    """A cache holds what transformers does while it grows and rows leave."""
    torch.manual_seed(0)
    ours, theirs = GrowingLayer(), DynamicLayer()
    rows = torch.arange(ROWS)
    for step in range(200):
        shape = (len(rows), KEY_HEADS, 7 if step == 0 else 1)
        new = torch.randn(*shape, WIDTH), torch.randn(*shape, 2 * WIDTH)  # some models have wider values
        for mine, known in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert torch.equal(mine, known)
        assert ours.get_seq_length() == theirs.get_seq_length() == 7 + step
        if step in (3, 90, 91):
            rows = torch.arange(len(rows))[1:].flip(0)
            ours.reorder_cache(rows)
            theirs.reorder_cache(rows)


def test_appended_token_leaves_others_in_place() -> None:
    """A token is written next to the others which stay where they are."""
    layer = GrowingLayer()
    layer.update(torch.randn(ROWS, KEY_HEADS, 4, WIDTH), torch.randn(ROWS, KEY_HEADS, 4, WIDTH))
    places = set()
    for _ in range(32):
        keys, values = layer.update(*torch.randn(2, ROWS, KEY_HEADS, 1, WIDTH))
        places.add((keys.data_ptr(), values.data_ptr()))
    assert len(places) == 1


def test_sliding_window_layers_use_transformers_cache() -> None:
    """Layers that forget old tokens keep the cache that transformers has for them."""
    config = Gemma3TextConfig(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])
    sliding, full = growing_cache(SimpleNamespace(config=config)).layers
    assert sliding.is_sliding
    assert not isinstance(sliding, GrowingLayer)
    assert isinstance(full, GrowingLayer)


@pytest.mark.parametrize("tokens", [1, 6], ids=["next-token", "prompt"])
@pytest.mark.parametrize("heads", [1, SHARED_BY], ids=["own-keys", "shared-keys"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "even"])
def test_heads_that_share_keys_attend_as_in_transformers(tokens: int, heads: int, padded: bool) -> None:
    torch.manual_seed(1)
    held = 11
    query = torch.randn(ROWS, KEY_HEADS * heads, tokens, WIDTH)
    key, value = torch.randn(2, ROWS, KEY_HEADS, held, WIDTH)
    mask = None
    if padded:
        mask = torch.ones(ROWS, 1, tokens, held, dtype=torch.bool).tril(held - tokens)
        mask[1, ..., :3] = False
    module: Any = SimpleNamespace(num_key_value_groups=heads, is_causal=True)
    found, _ = grouped_attention(module, query, key, value, mask, scaling=0.3)
    known, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    assert found.shape == known.shape
    assert torch.allclose(found, known, atol=1e-6)
