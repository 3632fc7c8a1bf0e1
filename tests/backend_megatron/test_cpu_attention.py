"""Attention of the CPU layer against its definition: masks, windows, packs, context parallelism, dropout."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from swift_backend_megatron.cpu import transformer_engine as te
from swift_backend_megatron.cpu.transformer_engine import attention as attention_module

HEADS, GROUPS, CHANNELS = 4, 2, 8


def explicit(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = True, window: int = -1, scale: float | None = None
) -> torch.Tensor:
    """Attention of one sequence by its definition; everything is [tokens, batch, heads, channels]."""
    k, v = (each.repeat_interleave(q.shape[2] // each.shape[2], 2) for each in (k, v))
    scores = torch.einsum("qbhc,kbhc->bhqk", q, k) * (scale or q.shape[-1] ** -0.5)
    distance = torch.arange(len(q))[:, None] - torch.arange(len(k))
    hidden = (distance < 0) & causal
    if window >= 0:
        hidden |= distance > window
    out = torch.einsum("bhqk,kbhc->qbhc", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
    return out.flatten(2)


def drawn(tokens: int, batch: int = 2, heads: int = HEADS, values: int = CHANNELS) -> list[torch.Tensor]:
    torch.manual_seed(tokens)
    sizes = ((heads, CHANNELS), (GROUPS, CHANNELS), (GROUPS, values))
    return [torch.randn(tokens, batch, *size, requires_grad=True) for size in sizes]


def assert_same(ours: torch.Tensor, reference: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    """Values and gradients."""
    torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(ours)
    gradients = [torch.autograd.grad((each * weight).sum(), leaves) for each in (ours, reference)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def attention(**options: Any) -> te.DotProductAttention:
    return te.DotProductAttention(HEADS, options.pop("kv_channels", CHANNELS), num_gqa_groups=GROUPS, **options)


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({}, {}),
        ({"attn_mask_type": "no_mask"}, {"causal": False}),
        ({"window_size": (5, 0)}, {"window": 5}),
        ({"softmax_scale": 0.2}, {"scale": 0.2}),
    ],
    ids=["causal", "full", "window", "scale"],
)
def test_attention_matches_definition(options: dict[str, Any], reference: dict[str, Any]) -> None:
    leaves = drawn(37)
    assert_same(attention(**options)(*leaves), explicit(*leaves, **reference), leaves)


def test_long_windowed_sequences_are_split_into_blocks() -> None:
    """Long sequences are divided into blocks where there is a window."""
    leaves = drawn(600, batch=1)
    assert_same(attention(window_size=(20, 0))(*leaves), explicit(*leaves, window=20), leaves)


def test_keys_and_values_may_have_different_sizes() -> None:
    leaves = drawn(19, values=6)
    assert_same(attention(kv_channels=(CHANNELS, 6))(*leaves), explicit(*leaves), leaves)


@pytest.mark.parametrize(("causal", "window"), [(True, -1), (True, 4), (False, -1)])
def test_packed_sequences_do_not_see_each_other(causal: bool, window: int) -> None:
    edges = [0, 7, 8, 31, 40]
    leaves = drawn(43, batch=1)
    out = attention(window_size=(window, 0 if causal else -1))(
        *(leaf.squeeze(1) for leaf in leaves),
        qkv_format="thd",
        cu_seqlens_q=torch.tensor(edges),
        attn_mask_type="padding_causal" if causal else "padding",
    )
    parts = [explicit(*(leaf[a:b] for leaf in leaves), causal=causal, window=window) for a, b in pairwise(edges)]
    reference = torch.cat(parts).squeeze(1)
    assert_same(out, F.pad(reference, (0, 0, 0, 3)), leaves)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_inside_a_pack_is_not_seen(causal: bool) -> None:
    lengths, rooms = [5, 8, 2], [8, 8, 8]
    leaves = drawn(24, batch=1)
    out = attention()(
        *(leaf.squeeze(1) for leaf in leaves),
        qkv_format="thd",
        cu_seqlens_q=torch.tensor([0, *torch.tensor(lengths).cumsum(0)]),
        cu_seqlens_q_padded=torch.tensor([0, *torch.tensor(rooms).cumsum(0)]),
        attn_mask_type="padding_causal" if causal else "padding",
    )
    parts = [
        F.pad(explicit(*(leaf[start : start + length] for leaf in leaves), causal=causal), (0, 0, 0, 0, 0, 8 - length))
        for start, length in zip((0, 8, 16), lengths, strict=True)
    ]
    assert_same(out, torch.cat(parts).squeeze(1), leaves)


def test_a_mask_of_padding_is_looked_at() -> None:
    leaves = drawn(12)
    mask = torch.zeros(2, 1, 1, 12, dtype=torch.bool)
    mask[1, ..., 9:] = True
    out = attention()(*leaves, attention_mask=mask, attn_mask_type="padding_causal")
    torch.testing.assert_close(out[:, 0], explicit(*leaves)[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[:9, 1], explicit(*(leaf[:9] for leaf in leaves))[:, 1], rtol=1e-5, atol=1e-5)


class Group:
    """Has the methods of a process group that attention calls."""

    def __init__(self, size: int, rank: int) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


def zigzag(tensor: torch.Tensor, rooms: list[int], size: int, rank: int) -> torch.Tensor:
    parts = []
    for sequence in tensor.split(rooms):
        chunks = sequence.chunk(2 * size)
        parts += [chunks[rank], chunks[2 * size - 1 - rank]]
    return torch.cat(parts)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [-1, 4])
def test_context_parallel_ranks_hold_two_chunks(
    monkeypatch: pytest.MonkeyPatch, size: int, packed: bool, window: int
) -> None:
    """Context parallel processes hold two chunks of every sequence."""
    rooms = [12, 24, 12] if packed else [48]
    lengths = [12, 20, 5] if packed else [48]
    leaves = drawn(48, batch=1 if packed else 2)
    outs, references = [], []
    for rank in range(size):
        local = [zigzag(leaf, rooms, size, rank) for leaf in leaves]
        whole = iter([torch.cat([zigzag(leaf, rooms, size, each) for each in range(size)]) for leaf in leaves[1:]])
        monkeypatch.setattr(attention_module, "gathered", lambda *_, whole=whole: next(whole))
        layer = attention(cp_group=Group(size, rank), window_size=(window, 0))
        if packed:
            edges = {
                name: torch.tensor([0, *each]).cumsum(0)
                for name, each in (("cu_seqlens_q", lengths), ("cu_seqlens_q_padded", rooms))
            }
            outs.append(layer(*(each.squeeze(1) for each in local), qkv_format="thd", **edges).unsqueeze(1))
        else:
            outs.append(layer(*local))
        parts, start = [], 0
        for length, room in zip(lengths, rooms, strict=True):
            part = explicit(*(leaf[start : start + length] for leaf in leaves), window=window)
            parts.append(F.pad(part, (0, 0, 0, 0, 0, room - length)))
            start += room
        references.append(zigzag(torch.cat(parts), rooms, size, rank))
    assert_same(torch.cat(outs), torch.cat(references), leaves)


def test_a_sequence_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot divide"):
        attention(cp_group=Group(2, 0))(
            *(leaf.squeeze(1) for leaf in drawn(6, batch=1)), qkv_format="thd", cu_seqlens_q=torch.tensor([0, 5, 12])
        )


def test_attention_dropout_applies_in_training_only() -> None:
    leaves = drawn(16)
    layer = attention(attention_dropout=0.5)
    assert not torch.equal(layer(*leaves), layer(*leaves))
    assert_same(layer.eval()(*leaves), explicit(*leaves), leaves)
