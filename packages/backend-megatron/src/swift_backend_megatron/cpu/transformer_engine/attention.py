"""Attention over rows or packed sequences, with context parallelism by gathering keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from swift_backend_megatron.cpu.transformer_engine.modules import TransformerEngineBaseModule, gathered
from swift_backend_megatron.cpu.unsupported import refuse, refuse_any


class DotProductAttention(TransformerEngineBaseModule):
    """Attends over [sequence, batch, heads, channels], or over packed sequences without a batch.

    Context parallel processes gather keys and values. As in Transformer Engine a mask is looked at only where the kind
    of mask is padding or arbitrary.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        sequence_parallel: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Sequence[int] | None = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        **options: Any,
    ) -> None:
        super().__init__(tp_group)
        refuse_any(**options)
        if softmax_type != "vanilla":
            refuse(f"attention with a {softmax_type} softmax")
        if attention_type != "self":
            refuse(f"{attention_type} attention")
        key_channels = kv_channels[0] if isinstance(kv_channels, tuple) else kv_channels
        self.softmax_scale = key_channels**-0.5 if softmax_scale is None else softmax_scale
        self.attn_mask_type, self.window_size, self.layer_number = attn_mask_type, window_size, layer_number
        self.attention_dropout = attention_dropout
        self._tracker = None if sequence_parallel else get_rng_state_tracker
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        if isinstance(cp_group, list):
            refuse("hierarchical context parallelism")
        self.cp_group, self.cp_comm_type = cp_group, cp_comm_type

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        qkv_format: str = "sbhd",
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        **options: Any,
    ) -> Tensor:
        refuse_any(**options)
        if qkv_format not in ("sbhd", "thd") or query.shape[0] != key.shape[0]:
            refuse(f"attention of {query.shape[0]} over {key.shape[0]} in the layout {qkv_format}")
        packed = qkv_format == "thd"
        visible = self._visible(attn_mask_type, window_size, None if packed else attention_mask)
        if packed:
            query, key, value = (each.unsqueeze(1) for each in (query, key, value))
        tokens = self._shards[0] * query.shape[0]
        sequences = _Sequences((tokens,), (tokens,))
        if packed:
            sequences = _packed_sequences(cu_seqlens_q, cu_seqlens_q_padded, tokens)
        out = self._by_sequence(query, key, value, sequences, visible)
        return out.flatten(1) if packed else out.flatten(2)

    @property
    def _shards(self) -> tuple[int, int]:
        """How many processes share the sequences, and which of them this is."""
        size = 1 if self.cp_group is None else self.cp_group.size()
        return size, 0 if size == 1 else self.cp_group.rank()

    def _visible(
        self, attn_mask_type: str | None, window_size: tuple[int, int] | None, attention_mask: Tensor | None
    ) -> _Visible:
        """Combine the kind of mask, the window and the mask itself into which keys a query sees."""
        kind = attn_mask_type or self.attn_mask_type
        if "bottom_right" in kind:
            refuse(f"a mask of the kind {kind}")
        left, right = window_size or self.window_size or (-1, -1)
        mask = None
        if attention_mask is not None and ("padding" in kind or kind == "arbitrary"):
            if self._shards[0] > 1:
                refuse("a mask of padding with context parallelism")
            mask = ~attention_mask
        return _Visible(left, 0 if "causal" in kind else right, mask)

    def _by_sequence(
        self, query: Tensor, key: Tensor, value: Tensor, sequences: _Sequences, visible: _Visible
    ) -> Tensor:
        """Attend within each sequence, and put the results end to end."""
        lengths, rooms = sequences
        size, rank = self._shards
        if size > 1:
            _check_divisible(sequences, size * len(query), size)
            order = _natural_order(rooms, size)
            key, value = (gathered(each, self.cp_group).index_select(0, order) for each in (key, value))
        keys, values = torch.split(key, list(rooms)), torch.split(value, list(rooms))
        outs = []
        ranges = _query_ranges(lengths, rooms, size, rank)
        with self._dropout_context():
            for span, own in zip(ranges, torch.split(query, [span.size for span in ranges]), strict=True):
                length = lengths[span.sequence]
                k, v = keys[span.sequence][:length], values[span.sequence][:length]
                step = visible.block or max(span.real, 1)
                for start in range(0, span.real, step):
                    block = own[start : min(start + step, span.real)]
                    outs.append(self._attend(block, k, v, span.first + start, visible))
                if span.size > span.real:
                    outs.append(query.new_zeros(span.size - span.real, *query.shape[1:-1], value.shape[-1]))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, first: int, visible: _Visible) -> Tensor:
        """Attend from the queries at position `first` onwards over the keys of their whole sequence."""
        low, high = visible.keys(first, len(query), len(key))
        key, value, channels = key[low:high], value[low:high], value.shape[-1]
        causal, mask = visible.mask_of(len(query), high - low, first - low)
        if channels < query.shape[-1]:
            # The fast implementation wants as many channels of values as of keys.
            value = F.pad(value, (0, query.shape[-1] - channels))
        q, k, v = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=causal,
            scale=self.softmax_scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out[..., :channels].permute(2, 0, 1, 3)

    def _dropout_context(self) -> AbstractContextManager[Any]:
        if self._tracker is None or not self.training or not self.attention_dropout:
            return nullcontext()
        return self._tracker().fork()  # type: ignore[no-any-return]


class _Visible(NamedTuple):
    """Which keys a query sees: so many to its left and right (negative limits are none), and where `mask` is true."""

    left: int
    right: int
    mask: Tensor | None

    @property
    def block(self) -> int:
        """How many queries to attend from at once where a window leaves each of them few keys; 0 is all."""
        return max(2 * self.left, 256) if self.left >= 0 and self.mask is None else 0

    def keys(self, first: int, queries: int, keys: int) -> tuple[int, int]:
        """Return the range of keys outside of which these queries see none."""
        if self.mask is not None:
            return 0, keys
        low = max(0, first - self.left) if self.left >= 0 else 0
        return low, min(keys, first + queries + self.right) if self.right >= 0 else keys

    def mask_of(self, queries: int, keys: int, ahead: int) -> tuple[bool, Tensor | None]:
        """Return whether the plain causal triangle is meant, and else the mask of queries that begin `ahead`."""
        whole = self.left < 0 or self.left >= queries - 1
        if self.right == 0 and ahead == 0 and queries == keys and whole and self.mask is None:
            return True, None
        if self.left < 0 and self.right < 0:
            return False, self.mask
        allowed = _allowed(queries, keys, ahead, self.left, self.right)
        return False, allowed if self.mask is None else self.mask & allowed


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _allowed(queries: int, keys: int, ahead: int, left: int, right: int) -> Tensor:
    """Return which keys the queries that begin `ahead` of them see. Negative limits are none."""
    distance = torch.arange(ahead, ahead + queries)[:, None] - torch.arange(keys)
    allowed = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        allowed &= distance <= left
    if right >= 0:
        allowed &= distance >= -right
    return allowed


class _Sequences(NamedTuple):
    """Lengths of sequences that lie end to end, and the room that each has with its padding."""

    lengths: tuple[int, ...]
    rooms: tuple[int, ...]


def _packed_sequences(cu: Tensor | None, padded: Tensor | None, tokens: int) -> _Sequences:
    """Return the sequences between these edges. Tokens after the last one are padding."""
    if cu is None:
        raise ValueError("packed sequences without cu_seqlens_q")
    lengths, rooms = (each.diff().tolist() for each in (cu, cu if padded is None else padded))
    rest = tokens - sum(rooms)
    return _Sequences((*lengths, *([0] if rest else [])), (*rooms, *([rest] if rest else [])))


def _check_divisible(sequences: _Sequences, tokens: int, size: int) -> None:
    """Raise ValueError for sequences that `size` processes cannot share."""
    rooms = sequences.rooms
    if sum(rooms) != tokens or any(room % (2 * size) for room in rooms):
        raise ValueError(f"sequences that context parallelism of {size} cannot divide: {rooms} of {tokens} tokens")


class _QueryRange(NamedTuple):
    """Queries of one process that follow each other in a sequence."""

    sequence: int
    first: int
    """The position of the first one in its sequence."""
    size: int
    real: int
    """The rest is padding."""


@lru_cache(maxsize=16)
def _query_ranges(lengths: tuple[int, ...], rooms: tuple[int, ...], size: int, rank: int) -> list[_QueryRange]:
    """Return the queries of a process: whole sequences, or of each the chunks `rank` and `-rank` of twice as many."""
    ranges = []
    for sequence, (length, room) in enumerate(zip(lengths, rooms, strict=True)):
        chunk = room // (2 * size)
        spans = [(0, room)] if size == 1 else [(rank * chunk, chunk), ((2 * size - 1 - rank) * chunk, chunk)]
        ranges += [_QueryRange(sequence, first, each, min(max(length - first, 0), each)) for first, each in spans]
    return ranges


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _natural_order(rooms: tuple[int, ...], size: int) -> Tensor:
    """Return the indices of the sequences' tokens in what was gathered from all processes."""
    indices, start, stride = [], 0, sum(rooms) // size
    for room in rooms:
        chunk = room // (2 * size)
        for index in range(2 * size):
            late = index >= size
            rank = 2 * size - 1 - index if late else index
            begin = rank * stride + start + late * chunk
            indices.append(torch.arange(begin, begin + chunk))
        start += 2 * chunk
    return torch.cat(indices)
