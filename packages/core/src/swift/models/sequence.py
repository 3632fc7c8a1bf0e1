"""Sequences sharded by tokens: Ulysses (all-to-all over heads) and context parallel (keys and values gathered).

Every process of a sequence group runs the decoder on its own part of the tokens. In attention, either each gets all
tokens of some heads (Ulysses), or each gets the keys and values of all tokens (context parallel). What the model says
of each token is gathered afterwards, so that objectives see whole samples on every process. For use by backends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.masking_utils import sdpa_mask

from swift.contracts import ModelView, Need, Run
from swift.data.batch import MicroBatch
from swift.errors import ModelError, UnsupportedLayout
from swift.models.attention import (
    VARLEN,
    AttentionChoice,
    Packing,
    choose_attention,
    mixing_layers,
    packing_of,
    varlen_attention,
)
from swift.models.classes import is_encoder
from swift.models.collectives import added_up, gathered
from swift.models.media import ProcessorReader
from swift.models.pooling import pooling_weights
from swift.models.positions import rope_by_length
from swift.models.router_losses import AddUp
from swift.models.sizes import values_of
from swift.models.view import ViewModule

# Their names since torch 2.13, and before.
_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

ULYSSES, GATHERED = "swift_ulysses", "swift_gathered"
POSITION_VIEWS = (
    "token_logps", "token_correct", "mean_logps", "token_entropy", "candidate_logps", "candidate_rest", "values",
)  # fmt: skip
"""Fields of `ModelView` that are laid out as [rows, width, ...]."""


@dataclass(frozen=True)
class SequenceShard:
    """Tell attention which tokens of a micro-batch this process has."""

    packing: Packing
    """Lengths of the samples that share each row, in whole rows."""
    start: int
    """First token of this process's part."""
    group: dist.ProcessGroup
    segment_ids: torch.Tensor
    """Of whole rows, made as long as all parts are together."""
    seen_by: list[str] = field(default_factory=list)
    """Names of the attention functions that have received this."""


def sequence_attention(run: Run, model_config: Any, *, cp: bool = True) -> AttentionChoice:
    """Return the kernel for sharded sequences, or refuse models whose attention is more than causal attention.

    `cp` is whether the backend has context parallel to offer instead of Ulysses.
    """
    parallel = run.config.parallel
    try:
        choice = choose_attention("sdpa", model_config, flat=True, device=run.topology.device)
        incompatibility = "" if choice.implementation == VARLEN else choice.reason
    except ModelError as error:
        incompatibility = error.message
    if is_encoder(model_config):
        incompatibility = "its tokens see those after them."
    if mixing := mixing_layers(model_config):
        incompatibility = f"it has {', '.join(mixing)} layers."
    if kind := rope_by_length(run.config.data.max_length, model_config):
        incompatibility = f"its rotary positions ({kind}) depend on the length of a whole sample."
    if incompatibility:
        raise UnsupportedLayout(
            f"{model_config.model_type} does not support sharded sequences: {incompatibility}",
            hint="Type --parallel.ulysses 1 --parallel.cp 1",
        )
    heads = next(
        (n for n in values_of(model_config.get_text_config(), "num_attention_heads") if n % parallel.ulysses), 0
    )
    if heads:
        raise UnsupportedLayout(
            f"{heads} attention heads are not divisible by parallel.ulysses {parallel.ulysses}.",
            hint=f"Choose a divisor of {heads}"
            + (f", or shard sequences by --parallel.cp {parallel.ulysses} instead." if cp else "."),
        )
    ulysses = parallel.ulysses > 1
    flat = run.config.data.packing or bool(run.config.data.padding_free)
    how = "all tokens of some heads on each process" if ulysses else "keys and values of all tokens on each process"
    return AttentionChoice("sdpa", ULYSSES if ulysses else GATHERED, flat, how)


class SequenceView(ViewModule):
    """Run the decoder on this process's shard of the tokens."""

    separates = False
    _shard: SequenceShard | None = None
    _whole: MicroBatch | None = None
    """The micro-batch of which this process has a part, while it is computed: encoders see whole rows."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        attention: AttentionChoice,
        group: dist.ProcessGroup,
        say: Callable[[str], None] = print,
    ) -> None:
        self.group = group
        """Processes that share each sample."""
        super().__init__(model, attention=attention, say=say)

    def forward_sharded(self, batch: MicroBatch, needs: Collection[Need]) -> ModelView:
        """Return the views of a whole micro-batch, each process having computed its own part."""
        width = batch.input_ids.shape[1]
        part, shard = _part_of(batch, self.group)
        self._shard, self._whole = shard, batch
        try:
            view: ModelView = self(part, needs)
        finally:
            self._shard = self._whole = None
        if not shard.seen_by:
            raise UnsupportedLayout(
                f"{type(self.causal_lm).__name__} does not pass to its attention that sequences are sharded.",
                hint="Type --parallel.ulysses 1 --parallel.cp 1",
            )

        def whole(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else gathered(values, 1, self.group)[:, :width]

        def summed(values: torch.Tensor | None) -> torch.Tensor | None:
            return None if values is None else added_up(values, self.group)

        return replace(
            view,
            scores=summed(view.scores),
            pooled=summed(view.pooled),
            **{name: whole(getattr(view, name)) for name in POSITION_VIEWS},
        )

    def _hidden(self, batch: MicroBatch) -> torch.Tensor:
        if self._shard is None or self._whole is None or batch.media is None:
            return super()._hidden(batch)
        # The encoders' outputs are put into embeddings of whole rows; these are cut at the door of the decoder.
        decoder = self.causal_lm.get_decoder()
        cut = partial(_cut_arguments, group=self.group)
        hook = decoder.register_forward_pre_hook(cut, with_kwargs=True)
        try:
            return super()._hidden(self._whole)
        finally:
            hook.remove()

    def _embedded(self, batch: MicroBatch) -> MicroBatch:
        return batch if self._whole is None or batch.media is None else self._whole

    def _whole_segments(self, batch: MicroBatch) -> torch.Tensor:
        return batch.segment_ids if self._shard is None else self._shard.segment_ids

    def _add_up_parts(self) -> AddUp | None:
        return None if self._shard is None else partial(dist.all_reduce, group=self.group)

    def pooling_weights(self, batch: MicroBatch, how: str) -> torch.Tensor:
        """Return the weights of this process's positions; which token is a segment's last is seen in whole rows."""
        if self._shard is None:
            return super().pooling_weights(batch, how)
        whole = pooling_weights(self._shard.segment_ids, batch.segments, how)
        return whole[:, self._shard.start : self._shard.start + batch.input_ids.shape[1]]

    def check(self) -> None:
        """Check what every view checks, and that sharded sequences have the values of whole ones."""
        super().check()
        self._check_sharded(self.probe(lengths=(7, 4)), "sequences")

    def check_images(self, reader: ProcessorReader) -> None:
        """Check what every view checks, and that sharded sequences with images have the values of whole ones."""
        if self.own_logits:
            raise UnsupportedLayout(
                f"{type(self.causal_lm).__name__} computes the logits of samples with images itself, from whole rows.",
                hint="Type --parallel.ulysses 1 --parallel.cp 1",
            )
        super().check_images(reader)
        together = reader.collated(self._image_samples(reader), flat=self.attention.flat)
        self._check_sharded(together.to(self._device()), "sequences with images")

    @torch.no_grad()
    def _check_sharded(self, batch: MicroBatch, what: str) -> None:
        need = self.comparable
        whole = getattr(self(batch, {need}), need.value)
        parts = getattr(self.forward_sharded(batch, {need}), need.value)
        if not self._agree(parts, whole):
            raise UnsupportedLayout(
                f"{type(self.causal_lm).__name__} computes different results when {what} are sharded.",
                hint="Type --parallel.ulysses 1 --parallel.cp 1",
            )

    def inputs(self, batch: MicroBatch) -> dict[str, Any]:
        """Return the arguments of the decoder, always with positions: a shard does not begin at zero."""
        # A mask of four dimensions counts as ready-made: transformers builds none of its own, and it isn't read.
        unread = batch.weights.new_zeros((1, 1, 1, 1))
        given = {"input_ids": batch.input_ids, "use_cache": False, "position_ids": self._positions(batch)}
        if self._shard is not None:
            return {**given, "attention_mask": unread, "shard": self._shard}
        return {**given, "attention_mask": unread, "packing": _packing(batch, batch.input_ids.shape[1])}


def ulysses_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    shard: SequenceShard | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Swap tokens for heads, attend to whole samples, swap back. Tensors are [rows, heads, tokens, width]."""
    if shard is None:
        return varlen_attention(module, query, key, value, attention_mask, **kwargs)
    shard.seen_by.append(ULYSSES)
    size = dist.get_world_size(shard.group)
    key, value = (_enough_heads(each, query.shape[1], size) for each in (key, value))
    query, key, value = (_swapped(each, shard.group) for each in (query, key, value))
    output, _ = varlen_attention(module, query, key, value, None, packing=shard.packing, **kwargs)
    return _swapped(output, shard.group), None


def gathered_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    shard: SequenceShard | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention of this process's queries to the keys and values of all tokens, sample by sample."""
    if shard is None:
        kwargs |= {"dropout": dropout, "scaling": scaling, "sliding_window": sliding_window}
        return varlen_attention(module, query, key, value, attention_mask, **kwargs)
    shard.seen_by.append(GATHERED)
    key, value = (_gather(each, shard.group) for each in (key, value))
    groups = query.shape[1] // key.shape[1]
    end = shard.start + query.shape[2]
    outputs = []
    begin = 0
    for length in shard.packing.lengths:
        first, last = max(begin, shard.start), min(begin + length, end)
        if first < last:
            # From the sample's first token, or the first that a window reaches, up to this part's last.
            oldest = begin if sliding_window is None else max(begin, first - sliding_window + 1)
            seen = slice(oldest, last)
            mask = _causal_mask(first, last, oldest, sliding_window, query.device)
            outputs.append(
                scaled_dot_product_attention(
                    query[:, :, first - shard.start : last - shard.start],
                    repeat_kv(key[:, :, seen], groups),
                    repeat_kv(value[:, :, seen], groups),
                    attn_mask=mask,
                    dropout_p=dropout,
                    is_causal=mask is None,
                    scale=scaling,
                )
            )
        begin += length
    return torch.cat(outputs, dim=2).transpose(1, 2), None


for _name, _attention in ((ULYSSES, ulysses_attention), (GATHERED, gathered_attention)):
    AttentionInterface.register(_name, _attention)
    AttentionMaskInterface.register(_name, sdpa_mask)


def _packing(batch: MicroBatch, width: int) -> Packing:
    """Return what shares each row of so many tokens."""
    if batch.boundaries is None:
        return Packing((width,))
    return packing_of(batch.boundaries.tolist(), width, batch.input_ids.device)


def _part_of(batch: MicroBatch, group: dist.ProcessGroup) -> tuple[MicroBatch, SequenceShard]:
    """Return this process's tokens of every row, after padding rows to be evenly divisible."""
    size, width = dist.get_world_size(group), batch.input_ids.shape[1]
    whole = -(-width // size) * size
    start = dist.get_rank(group) * (whole // size)
    packing = _packing(batch, whole)
    segment_ids = pad(batch.segment_ids, (0, whole - width), value=-1)
    part = batch.map_positions(lambda values, padding: _cut(values, group, padding))
    return part, SequenceShard(packing, start, group, segment_ids)


def _cut(values: torch.Tensor, group: dist.ProcessGroup, padding: int = 0) -> torch.Tensor:
    """Return this process's part of values laid out as [rows, width, ...], which are padded to be evenly divisible."""
    size, rank, width = dist.get_world_size(group), dist.get_rank(group), values.shape[1]
    each = -(-width // size)
    more = (0, 0) * (values.ndim - 2) + (0, each * size - width)
    return pad(values, more, value=padding)[:, rank * each : (rank + 1) * each].contiguous()


def _cut_arguments(
    _decoder: torch.nn.Module, positional: tuple[Any, ...], named: dict[str, Any], *, group: dist.ProcessGroup
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a decoder's arguments for this process's part of the tokens, from those for whole rows."""
    named = {**named, "inputs_embeds": _cut(named["inputs_embeds"], group)}
    positions = named["position_ids"]
    named["position_ids"] = (
        _cut(positions, group) if positions.ndim == 2 else _cut(positions.movedim(0, -1), group).movedim(-1, 0)
    )
    seen = named.get("visual_pos_masks")
    if seen is not None:
        # What images add to the first layers (Qwen3-VL) lies as one row for each of their tokens.
        rows = torch.zeros(seen.shape, dtype=torch.int64, device=seen.device)
        rows[seen] = torch.arange(1, int(seen.sum()) + 1, device=seen.device)
        rows = _cut(rows, group)
        named["visual_pos_masks"] = rows > 0
        added = named.get("deepstack_visual_embeds")
        if added is not None:
            named["deepstack_visual_embeds"] = [each.index_select(0, rows[rows > 0] - 1) for each in added]
    return positional, named


def _causal_mask(first: int, last: int, oldest: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """Return which tokens from `oldest` on the tokens from `first` up to `last` see.

    None where torch's own causality does.
    """
    if first == oldest and (window is None or last - first <= window):
        return None
    queries = torch.arange(first, last, device=device)[:, None]
    keys = torch.arange(oldest, last, device=device)[None, :]
    seen: torch.Tensor = queries >= keys
    if window is not None:
        seen &= queries - keys < window
    return seen


def _enough_heads(tensor: torch.Tensor, query_heads: int, size: int) -> torch.Tensor:
    """Repeat key-value heads as often as it takes to make them divisible, no more."""
    heads = tensor.shape[1]
    if heads % size == 0:
        return tensor
    times = size // heads if size % heads == 0 else query_heads // heads
    repeated: torch.Tensor = repeat_kv(tensor, times)
    return repeated


class _AllToAll(torch.autograd.Function):
    """Exchange parts, [processes, ...] → the same. It is its own inverse, so that its gradient is itself."""

    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _exchange(parts, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _exchange(gradient, ctx.group), None


def _exchange(parts: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    parts = parts.contiguous()  # before the output is made: one like a permuted tensor would be permuted too
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return received


def _swapped(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Turn [rows, heads, part of the tokens, width] into [rows, part of the heads, tokens, width], or the other way."""
    size = dist.get_world_size(group)
    rows, whole, part, width = tensor.shape
    parts = tensor.view(rows, size, whole // size, part, width).transpose(0, 1)
    received: torch.Tensor = _AllToAll.apply(parts, group)  # type: ignore[no-untyped-call]
    return received.permute(1, 2, 0, 3, 4).reshape(rows, whole // size, size * part, width)


class _GatherKeys(torch.autograd.Function):
    """Stack the parts of all processes; gradients of a part come from all and are added up."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        size = dist.get_world_size(group)
        part = part.contiguous()
        whole = part.new_empty(size * part.shape[0], *part.shape[1:])
        _gather_single(whole, part, group=group)
        return whole.view(size, *part.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.contiguous()
        own = gradient.new_empty(gradient.shape[1:])
        _scatter_single(own, gradient.flatten(0, 1), group=ctx.group)
        return own, None


def _gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Turn [rows, heads, part of the tokens, width] into [rows, heads, tokens, width]."""
    rows, heads, _, width = tensor.shape
    parts: torch.Tensor = _GatherKeys.apply(tensor, group)  # type: ignore[no-untyped-call]
    return parts.permute(1, 2, 0, 3, 4).reshape(rows, heads, -1, width)
