"""Micro-batches cut for this process, and what the last stage of the pipeline says of them.

Where tokens are shared by several processes (context parallel), each sample is padded to a multiple of twice their
number and cut into as many chunks; a process has the first and the last, the next the second and the second last, so
that causal attention is the same work for all. What the model says of each token is gathered afterwards: objectives
see whole samples on every process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from swift.contracts import ModelView, Need
from swift.toolkit import LogitTransform, TokenViews, VocabularyShard, token_logps

if TYPE_CHECKING:
    from swift.data.batch import MicroBatch


@dataclass
class Part:
    """What this process gets of a micro-batch."""

    batch: MicroBatch
    """The whole of it."""
    counts: bool
    """False for one that only stands in."""
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    targets: torch.Tensor
    padding: torch.Tensor
    """bool: tokens that only fill up."""
    packed: Any
    """Megatron's PackedSeqParams, for samples that lie end to end."""
    places: torch.Tensor | None
    """Where in the concatenated parts of all processes each token of the micro-batch lies; None where it is whole."""


@dataclass(frozen=True)
class Cutter:
    """How micro-batches are cut."""

    cp: int
    place: int
    """Of this process among those that share samples."""
    multiple: int
    """The part of each process is padded to a multiple of this many tokens (sequence parallel)."""
    device: torch.device

    def cut(self, batch: MicroBatch, counts: bool, shape: tuple[int, int] = (0, 0)) -> Part:
        """This process's part, on its device, padded to so many rows and tokens at least."""
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

        here = positions if whole else positions[self._zigzag(lengths, self.place)]
        return Part(
            batch=batch.to(self.device),
            counts=counts,
            input_ids=own(batch.input_ids),
            position_ids=here[None].expand(rows + more, -1).contiguous().to(self.device),
            targets=own(batch.targets),
            padding=~own(batch.segment_ids >= 0),
            packed=packed,
            places=None if whole else self._places(index, lengths, width).to(self.device),
        )

    def _index(self, segments: Sequence[int], least: int) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Token of the row at each place of the padded row (`width`, one more than the last, for padding)."""
        chunk = 2 * self.cp if self.cp > 1 else 1
        width = sum(segments)
        lengths = [-(-length // chunk) * chunk for length in segments]
        # Padding that makes the whole divisible goes behind the last sample, as part of it: nothing looks ahead.
        unit = self.cp * self.multiple * (2 if self.cp > 1 else 1)
        lengths[-1] += max(0, least - sum(lengths))
        lengths[-1] += -sum(lengths) % unit
        index, positions, start = [], [], 0
        for length, padded in zip(segments, lengths, strict=True):
            index += [torch.arange(start, start + length), torch.full((padded - length,), width)]
            positions.append(torch.arange(padded))
            start += length
        return torch.cat(index), torch.cat(positions), lengths

    def _own(self, index: torch.Tensor, lengths: Sequence[int], place: int | None = None) -> torch.Tensor:
        """Places of the padded row that a process has, as tokens of the row."""
        return index[self._zigzag(lengths, self.place if place is None else place)]

    def _zigzag(self, lengths: Sequence[int], place: int) -> torch.Tensor:
        if self.cp == 1:
            return torch.arange(sum(lengths))
        parts, start = [], 0
        for length in lengths:
            chunk = length // (2 * self.cp)
            both = (place, 2 * self.cp - 1 - place)
            parts += [torch.arange(start + each * chunk, start + (each + 1) * chunk) for each in both]
            start += length
        return torch.cat(parts)

    def _places(self, index: torch.Tensor, lengths: Sequence[int], width: int) -> torch.Tensor:
        parts = torch.cat([self._own(index, lengths, place) for place in range(self.cp)])
        places = torch.empty(width + 1, dtype=torch.int64)
        places[parts] = torch.arange(parts.numel())
        return places[:width]


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


def view_of(
    part: Part,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    vocabulary: int,
    transform: LogitTransform,
    needs: Collection[Need],
    *,
    sequence_parallel: bool,
) -> ModelView:
    """What the hidden states at the end of the pipeline say of a micro-batch, through a head that is cut by words.

    Only tokens that count go through the head. Under context parallel each process views its own tokens.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import mappings

    group = parallel_state.get_tensor_model_parallel_group()
    if sequence_parallel:
        hidden = mappings.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
    rows, width = part.targets.shape
    learned = _own_weights(part)
    chosen = learned.reshape(-1).nonzero()[:, 0]
    hidden = hidden.transpose(0, 1).flatten(0, 1).index_select(0, chosen)
    if not sequence_parallel and group.size() > 1:
        # Behind the transposition: Megatron adds gradients that are not contiguous up in a copy that it then drops.
        hidden = mappings.copy_to_tensor_model_parallel_region(hidden)
    shard = None
    if group.size() > 1 or weight.shape[0] > vocabulary:
        start = group.rank() * weight.shape[0]
        shard = VocabularyShard(start, max(0, min(weight.shape[0], vocabulary - start)), vocabulary, group)
    views = token_logps(
        hidden,
        weight,
        part.targets.reshape(-1)[chosen],
        transform=transform,
        want=needs,
        shard=shard,
    )

    def spread(values: torch.Tensor) -> torch.Tensor:
        blank = values.new_zeros(rows * width).index_put((chosen,), values).view(rows, width)
        return blank if part.places is None else gathered(blank)[: len(part.batch.weights), part.places]

    return _view(views, spread, needs)


def _view(views: TokenViews, spread: Any, needs: Collection[Need]) -> ModelView:
    return ModelView(
        token_logps=spread(views.logps) if Need.TOKEN_LOGPS in needs else None,
        token_correct=spread(views.correct) if Need.TOKEN_CORRECT in needs else None,
        mean_logps=spread(views.mean_logps) if Need.MEAN_LOGPS in needs else None,
    )


def _own_weights(part: Part) -> torch.Tensor:
    weights = part.batch.weights
    if part.places is None:
        return weights != 0
    from megatron.core import parallel_state

    group = parallel_state.get_context_parallel_group()
    size = part.targets.shape[1]
    everyone = torch.zeros(part.targets.shape[0], size * group.size(), dtype=torch.bool, device=weights.device)
    everyone[: len(weights), part.places] = weights != 0
    return everyone[:, group.rank() * size : (group.rank() + 1) * size]


def gathered(values: torch.Tensor) -> torch.Tensor:
    """[rows, own tokens] of all processes that share them, side by side."""
    from megatron.core import parallel_state

    result: torch.Tensor = _Gathered.apply(values, parallel_state.get_context_parallel_group())  # type: ignore[no-untyped-call]
    return result


class _Gathered(torch.autograd.Function):
    """All have the same loss of all tokens: each takes the gradient of its own."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group, ctx.width = group, values.shape[1]
        if group.size() == 1:
            return values
        parts = [torch.empty_like(values) for _ in range(group.size())]
        dist.all_gather(parts, values.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        start = ctx.group.rank() * ctx.width
        return gradient[:, start : start + ctx.width].contiguous(), None
