"""Micro-batches as this process gets them: shards of sequences that several processes share, padded.

Where sequences are shared (context parallel), each segment is padded to a multiple of twice the number of processes
and divided into as many chunks; a process has the first and the last, the next the second and the second last, so
that causal attention is the same work for all. What is computed per token is gathered afterwards: objectives see whole
segments on every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from swift.data.batch import MicroBatch


@dataclass(frozen=True)
class WholeRows:
    """Tokens and images of whole rows, of which a process computes its columns."""

    input_ids: torch.Tensor
    kinds: torch.Tensor
    """Which tokens stand for images."""
    columns: torch.Tensor | None
    """Those of this process, in its order; None where it has all."""
    inputs: dict[str, torch.Tensor]
    """As the model's processor names them."""


@dataclass
class MicroBatchSlice:
    """A process's slice of a micro-batch."""

    batch: MicroBatch
    """The whole of it."""
    counts: bool
    """False for a dummy, which other processes have rows for."""
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    targets: torch.Tensor
    segment_ids: torch.Tensor
    """Index of the segment of each token; -1 is padding."""
    packed: Any
    """Megatron's PackedSeqParams, for segments that are end to end."""
    rows: WholeRows | None
    """Whole rows with images; None where there are none in it."""
    gathered_at: torch.Tensor | None
    """Index of each token of the micro-batch in the concatenated shards of all processes; None where it is whole."""


@dataclass(frozen=True)
class SequenceSlicer:
    """Slices micro-batches for this process."""

    cp: int
    rank: int
    """Of this process among those that share sequences."""
    multiple: int
    """Each process's shard is padded to a multiple of this many tokens (sequence parallel)."""
    device: torch.device

    def slice(self, batch: MicroBatch, counts: bool, shape: tuple[int, int] = (0, 0)) -> MicroBatchSlice:
        """Return this process's shard, on its device, padded to so many rows and tokens at least."""
        rows, width = batch.input_ids.shape
        more = max(0, shape[0] - rows)
        if batch.boundaries is None:
            segments: Sequence[int] = [width]
        else:
            edges = batch.boundaries.tolist()
            segments = [end - start for start, end in pairwise(edges)]
            if edges[-1] < width:
                segments.append(width - edges[-1])
        index, positions, lengths = self._index(segments, shape[1])
        packed = _packed(lengths, self.device) if batch.boundaries is not None else None
        whole = self.cp == 1 and index.numel() == width and not more

        def own(values: torch.Tensor) -> torch.Tensor:
            if whole:
                return values.to(self.device, non_blocking=True)
            padded = torch.nn.functional.pad(values, (0, 1, 0, more))
            return padded[:, self._own(index, lengths)].to(self.device, non_blocking=True)

        here = positions if whole else positions[self._zigzag(lengths, self.rank)]
        media = batch.media
        positions = here[None].expand(rows + more, -1).contiguous().to(self.device)
        if media is not None and media.positions is not None:
            positions = torch.stack([own(each) for each in media.positions])
        return MicroBatchSlice(
            batch=batch.to(self.device),
            counts=counts,
            input_ids=own(batch.input_ids),
            position_ids=positions,
            targets=own(batch.targets),
            segment_ids=own(batch.segment_ids + 1) - 1,  # what fills up is 0
            packed=packed,
            rows=None if media is None else self._rows(batch, index, lengths, more),
            gathered_at=None if whole else self._gathered_at(index, lengths, width).to(self.device),
        )

    def _rows(self, batch: MicroBatch, index: torch.Tensor, lengths: Sequence[int], more: int) -> WholeRows:
        """Return what an encoder and the embedding need of rows that are padded as their shards are."""
        assert batch.media is not None

        def padded(values: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(values, (0, 1, 0, more))[:, index].to(self.device, non_blocking=True)

        return WholeRows(
            input_ids=padded(batch.input_ids),
            kinds=padded(batch.media.kinds),
            columns=None if self.cp == 1 else self._zigzag(lengths, self.rank).to(self.device),
            inputs={name: each.to(self.device, non_blocking=True) for name, each in batch.media.inputs.items()},
        )

    def _index(self, segments: Sequence[int], least: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Return token and position of each column of the padded row (`width` stands for padding), and the lengths."""
        chunk = 2 * self.cp if self.cp > 1 else 1
        width = sum(segments)
        lengths = [-(-length // chunk) * chunk for length in segments]
        # Padding that makes the whole divisible follows the last segment, as part of it: nothing looks ahead.
        unit = self.cp * self.multiple * (2 if self.cp > 1 else 1)
        lengths[-1] += max(0, least - sum(lengths))
        lengths[-1] += -sum(lengths) % unit
        index, positions, start = [], [], 0
        for length, padded in zip(segments, lengths, strict=True):
            index += [torch.arange(start, start + length), torch.full((padded - length,), width)]
            positions.append(torch.arange(padded))
            start += length
        return torch.cat(index), torch.cat(positions), lengths

    def _own(self, index: torch.Tensor, lengths: Sequence[int], rank: int | None = None) -> torch.Tensor:
        """Return the tokens of the row that a process has, in its order."""
        return index[self._zigzag(lengths, self.rank if rank is None else rank)]

    def _zigzag(self, lengths: Sequence[int], rank: int) -> torch.Tensor:
        """Return the columns of the padded row that a process has."""
        if self.cp == 1:
            return torch.arange(sum(lengths))
        columns, start = [], 0
        for length in lengths:
            chunk = length // (2 * self.cp)
            both = (rank, 2 * self.cp - 1 - rank)
            columns += [torch.arange(start + each * chunk, start + (each + 1) * chunk) for each in both]
            start += length
        return torch.cat(columns)

    def _gathered_at(self, index: torch.Tensor, lengths: Sequence[int], width: int) -> torch.Tensor:
        tokens = torch.cat([self._own(index, lengths, rank) for rank in range(self.cp)])
        indices = torch.empty(width + 1, dtype=torch.int64)
        indices[tokens] = torch.arange(tokens.numel())
        return indices[:width]


def _packed(lengths: Sequence[int], device: torch.device) -> Any:
    from megatron.core.packed_seq_params import PackedSeqParams

    edges = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    edges[1:] = torch.tensor(lengths).cumsum(0)
    edges = edges.to(device)
    longest = max(lengths)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=edges,
        cu_seqlens_kv=edges,
        cu_seqlens_q_padded=edges,
        cu_seqlens_kv_padded=edges,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def gathered(values: torch.Tensor) -> torch.Tensor:
    """Return [rows, own tokens] of all processes that share them, side by side."""
    from megatron.core import parallel_state

    result: torch.Tensor = _Gathered.apply(values, parallel_state.get_context_parallel_group())  # type: ignore[no-untyped-call]
    return result


def summed(values: torch.Tensor) -> torch.Tensor:
    """Return the sum over all processes that share sequences; each takes the whole gradient of it."""
    from megatron.core import parallel_state

    result: torch.Tensor = _Summed.apply(values, parallel_state.get_context_parallel_group())  # type: ignore[no-untyped-call]
    return result


class _Summed(torch.autograd.Function):
    """Sums forward. All processes have the same loss of the sum, which is what each contributes to."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _Gathered(torch.autograd.Function):
    """Gathers forward. All processes have the same loss of all tokens: backward, each takes the gradient of its own."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group, ctx.width = group, values.shape[1]
        if group.size() == 1:
            return values
        shards = [torch.empty_like(values) for _ in range(group.size())]
        dist.all_gather(shards, values.contiguous(), group=group)
        return torch.cat(shards, dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        start = ctx.group.rank() * ctx.width
        return gradient[:, start : start + ctx.width].contiguous(), None
