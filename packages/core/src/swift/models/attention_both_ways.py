"""Attention of encoders to samples that lie end to end: each token sees all of its sample, or a window around it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from swift.errors import ModelError
from swift.models.attention import BOTH_WAYS, Packing, flash_dtype


def attention_both_ways(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention within each sample of a row, in both directions; tensors are [1, heads, tokens, width].

    A token sees those less than `sliding_window` away. Without `packing` it is transformers' own sdpa, mask and all.
    """
    if packing is None:
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output
    unread = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if getattr(module, "is_causal", True):
        unread.append("causal attention")
    if unread:
        raise ModelError(
            f"{type(module).__name__} uses {', '.join(unread)}, which attention without padding does not support.",
            hint="Type --data.packing false --data.padding_free false",
        )
    key, value = (repeat_kv(each, query.shape[1] // key.shape[1]) for each in (key, value))
    if packing.edges is not None and (dtype := flash_dtype(query)) is not None:
        row = (tensor[0].transpose(0, 1).to(dtype) for tensor in (query, key, value))
        return _all_at_once((*row,), packing, dropout, scaling, sliding_window)[None], None
    queries, keys, values = (tensor.split_with_sizes(packing.lengths, dim=2) for tensor in (query, key, value))
    outputs = [
        scaled_dot_product_attention(
            own, seen, read, attn_mask=_window(own, sliding_window), dropout_p=dropout, scale=scaling
        ).transpose(1, 2)
        for own, seen, read in zip(queries, keys, values, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def _window(query: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """Return which tokens see which others; None where all see all."""
    length = query.shape[2]
    if window is None or length <= window:
        return None
    positions = torch.arange(length, device=query.device)
    return (positions[:, None] - positions).abs() < window


def _all_at_once(
    row: tuple[torch.Tensor, ...], packing: Packing, dropout: float, scaling: float | None, window: int | None
) -> torch.Tensor:
    """Attention by torch's own FlashAttention to [tokens, heads, width] of a row."""
    side = None if window is None else window - 1
    edges, longest = packing.edges, packing.longest
    output: torch.Tensor = torch.ops.aten._flash_attention_forward(
        *row, edges, edges, longest, longest, dropout, False, False,
        scale=scaling, window_size_left=side, window_size_right=side,
    )[0]  # fmt: skip
    return output


AttentionInterface.register(BOTH_WAYS, attention_both_ways)
AttentionMaskInterface.register(BOTH_WAYS, sdpa_mask)
