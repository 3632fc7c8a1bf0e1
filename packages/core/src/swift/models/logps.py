"""Log-probabilities of target tokens, without the logits of all tokens at once.

The output layer's logits are by far the largest tensor of a training step: tokens × vocabulary. Here they exist for
a chunk of tokens at a time and are computed again in the backward pass; where all of them are small they are kept,
once, and turned into their own gradient in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from swift.contracts import Need

KEEP_BYTES = 64 * 2**20
"""Logits up to this size are kept for the backward pass."""
CHUNK_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}
"""Size of a chunk of logits, by type of device."""
MIN_CHUNK = 128
"""Tokens of a chunk at least: fewer would leave the matrix multiplication waiting for the weights."""
BLOCK_BYTES = 16 * 2**20
"""On a CPU, elementwise work goes through the logits in blocks: kind to its caches, large enough for its threads."""


@dataclass(frozen=True)
class LogitTransform:
    """What a model does to its head's output: `softcap * tanh(scale * x / softcap)`."""

    scale: float = 1.0
    softcap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits in fp32."""
        logits = logits.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = (logits / self.softcap).tanh() * self.softcap
        return logits

    def slope(self, transformed: torch.Tensor) -> torch.Tensor | float | None:
        """The derivative where the output is `transformed`; None means 1."""
        if self.softcap is not None:
            return (1 - (transformed / self.softcap).square()) * self.scale
        return None if self.scale == 1.0 else self.scale


@dataclass(frozen=True)
class VocabularyShard:
    """The words that this process's rows of the head stand for, where processes of `group` have the others.

    Everything that a view needs of all words is two small all-reduces per chunk. The gradient of the hidden states is
    that of this process's words alone: adding it up over the group is the caller's business.
    """

    start: int
    size: int
    """Rows that stand for words; those behind them are padding, and as if they were not there."""
    vocabulary: int
    """Words in all."""
    group: dist.ProcessGroup

    def hide_padding(self, logits: torch.Tensor) -> None:
        """No probability falls on rows that stand for nothing."""
        if self.size < logits.shape[-1]:
            logits[:, self.size :] = -torch.inf

    def forget_padding(self, gradient: torch.Tensor) -> None:
        """Nor any gradient."""
        if self.size < gradient.shape[-1]:
            gradient[:, self.size :] = 0.0

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """The largest over all words, of the largest of these."""
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.group)
        return values

    def add_up(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Sums over the words of all processes."""
        table = torch.stack(values)
        dist.all_reduce(table, group=self.group)
        return table.unbind()

    def local(self, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of these targets here (any row, where they are elsewhere), and which are here."""
        rows = targets - self.start
        here = (rows >= 0) & (rows < self.size)
        return rows.where(here, torch.zeros_like(rows)), here


@dataclass
class TokenViews:
    """Per token: log p(target), whether the target is the most likely token, and the vocabulary's mean of log p."""

    logps: torch.Tensor
    correct: torch.Tensor
    mean_logps: torch.Tensor

    @classmethod
    def joined(cls, parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> TokenViews:
        """The chunks' results, end to end."""
        logps, correct, means = zip(*parts, strict=True)
        return cls(torch.cat(logps), torch.cat(correct), torch.cat(means))


def token_logps(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    transform: LogitTransform | None = None,
    want: Collection[Need] = (Need.TOKEN_LOGPS,),
    chunk_tokens: int | None = None,
    keep_bytes: int = KEEP_BYTES,
    shard: VocabularyShard | None = None,
) -> TokenViews:
    """View `targets` [tokens] under the head `weight` [vocabulary, width] applied to `hidden` [tokens, width].

    Matrix products run in the autocast precision, or the weight's; everything after them in fp32. Of `TokenViews`,
    only what is in `want` is computed; the rest is zero. With a `shard` other processes have other rows of the head,
    and the same hidden states and targets.
    """
    tokens, vocabulary = hidden.shape[0], weight.shape[0]
    transform = transform or LogitTransform()
    small = tokens * vocabulary * 4 <= keep_bytes
    settings = _Settings(
        transform=transform,
        dtype=_product_dtype(weight),
        chunk=max(1, tokens) if small else chunk_tokens or _chunk_tokens(vocabulary, hidden.device.type),
        keep=small and torch.is_grad_enabled() and transform.softcap is None,
        correct=Need.TOKEN_CORRECT in want,
        means=Need.MEAN_LOGPS in want,
        shard=shard,
    )
    return TokenViews(*cast("Any", _HeadLogps.apply)(hidden, weight, bias, targets, settings))


def token_logps_of_module(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    *,
    vocabulary: int,
    transform: LogitTransform | None = None,
    want: Collection[Need] = (Need.TOKEN_LOGPS,),
    chunk_tokens: int | None = None,
    keep_bytes: int = KEEP_BYTES,
) -> TokenViews:
    """The same through a head that is more than a matrix (adapters, quantised weights, hooks), by checkpointing."""
    transform = transform or LogitTransform()

    def view(piece: torch.Tensor, piece_targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = transform(head(piece))
        normaliser = logits.logsumexp(-1)
        logps = logits.gather(-1, piece_targets[:, None])[:, 0] - normaliser
        nothing = torch.zeros_like(logps, requires_grad=False)
        correct = (logits.detach().argmax(-1) == piece_targets).float() if Need.TOKEN_CORRECT in want else nothing
        means = logits.mean(-1) - normaliser if Need.MEAN_LOGPS in want else nothing
        return logps, correct, means

    tokens = hidden.shape[0]
    if tokens * vocabulary * 4 <= keep_bytes:
        return TokenViews(*view(hidden, targets))
    size = chunk_tokens or _chunk_tokens(vocabulary, hidden.device.type)
    pieces = [(hidden[rows], targets[rows]) for rows in _chunks(tokens, size)]
    return TokenViews.joined([checkpoint(view, *piece, use_reentrant=False) for piece in pieces])


def _chunk_tokens(vocabulary: int, device: str) -> int:
    return max(MIN_CHUNK, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // (4 * vocabulary))


def _product_dtype(weight: torch.Tensor) -> torch.dtype:
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


@dataclass(frozen=True)
class _Settings:
    transform: LogitTransform
    dtype: torch.dtype
    """Precision of the matrix products."""
    chunk: int
    keep: bool
    correct: bool
    means: bool
    shard: VocabularyShard | None = None


class _HeadLogps(torch.autograd.Function):
    """hidden, weight, bias → (log p(target), target is the most likely, mean of log p).

    With `keep`, the forward pass leaves exp(logit - largest) behind, whole, and the backward pass overwrites it with
    the gradient. A second backward pass is then refused by autograd, which counts changes in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        settings: _Settings,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        tokens = hidden.shape[0]
        logps, correct, means, normalisers, totals = (hidden.new_zeros(tokens, dtype=torch.float32) for _ in range(5))
        cast_weight = weight.to(settings.dtype)
        kept = None
        for rows in _chunks(tokens, settings.chunk):
            logits = _logits(hidden[rows], cast_weight, bias, settings)
            for piece, part in _blocks(logits, rows.start):
                look = _look if settings.shard is None else _look_together
                largest, totals[part], at_target, hits, mean = look(piece, targets[part], settings)
                normalisers[part] = largest + totals[part].log()
                logps[part] = at_target - normalisers[part]
                if hits is not None:
                    correct[part] = hits
                if mean is not None:
                    means[part] = mean - normalisers[part]
            kept = logits if settings.keep else None
            del logits  # or the next chunk would be made beside this one
        ctx.settings = settings
        ctx.save_for_backward(hidden, weight, bias, targets, normalisers, totals, kept)
        ctx.mark_non_differentiable(correct)
        return logps, correct, means

    @staticmethod
    def backward(
        ctx: Any, logps_grad: torch.Tensor, _correct_grad: torch.Tensor, means_grad: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, normalisers, totals, kept = ctx.saved_tensors
        settings: _Settings = ctx.settings
        gradients = _Gradients(hidden, weight, bias, ctx.needs_input_grad, settings.dtype)
        shrink = -(logps_grad + means_grad)
        if kept is not None:
            shrink = shrink / totals
        shard = settings.shard
        spread = means_grad / (weight.shape[0] if shard is None else shard.vocabulary)
        added = logps_grad
        if shard is not None:
            targets, here = shard.local(targets)
            added = logps_grad * here
        for rows in _chunks(hidden.shape[0], settings.chunk):
            logits = _logits(hidden[rows], gradients.cast_weight, bias, settings) if kept is None else kept
            for piece, part in _blocks(logits, rows.start):
                slope = settings.transform.slope(piece)
                if kept is None:
                    piece.sub_(normalisers[part, None]).exp_()
                piece.mul_(shrink[part, None]).scatter_add_(-1, targets[part, None], added[part, None])
                if settings.means:
                    piece.add_(spread[part, None])
                if slope is not None:
                    piece.mul_(slope)
                if shard is not None:
                    shard.forget_padding(piece)
            gradients.add(rows, logits)
            del logits
        return gradients.hidden, gradients.weight, gradients.bias, None, None


class _Gradients:
    """The gradients of those of hidden, weight and bias that want one, added up chunk by chunk in fp32."""

    def __init__(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        wanted: tuple[bool, ...],
        dtype: torch.dtype,
    ) -> None:
        self.cast_weight = weight.to(dtype)
        self.hidden = torch.empty_like(hidden) if wanted[0] else None
        self.bias = torch.zeros_like(bias) if bias is not None and wanted[2] else None
        self._input = hidden
        self._wants_weight = wanted[1]
        self._weight_dtype = weight.dtype
        self._weight_sum: torch.Tensor | None = None

    def add(self, rows: slice, gradient: torch.Tensor) -> None:
        """Take in the gradient of the logits of `rows`."""
        if self.bias is not None:
            self.bias += gradient.sum(0)
        gradient = gradient.to(self.cast_weight.dtype)
        if self.hidden is not None:
            self.hidden[rows] = gradient @ self.cast_weight
        if not self._wants_weight:
            return
        inputs = self._input[rows].to(gradient.dtype)
        if self._weight_sum is None:
            self._weight_sum = (gradient.t() @ inputs).float()
        elif gradient.dtype == torch.float32:
            self._weight_sum.addmm_(gradient.t(), inputs)
        else:
            self._weight_sum += gradient.t() @ inputs

    @property
    def weight(self) -> torch.Tensor | None:
        """The weight's gradient in the weight's precision."""
        if not self._wants_weight:
            return None
        if self._weight_sum is None:  # not a single token was looked at
            return torch.zeros_like(self.cast_weight, dtype=self._weight_dtype)
        return self._weight_sum.to(self._weight_dtype)


def _logits(
    hidden: torch.Tensor, cast_weight: torch.Tensor, bias: torch.Tensor | None, settings: _Settings
) -> torch.Tensor:
    bias = None if bias is None else bias.to(settings.dtype)
    logits = settings.transform(torch.nn.functional.linear(hidden.to(settings.dtype), cast_weight, bias))
    if settings.shard is not None:
        settings.shard.hide_padding(logits)
    return logits


_Seen = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Of each token: largest logit, sum of exp(logit - largest), logit of the target, whether that is the largest, mean."""


def _look(logits: torch.Tensor, targets: torch.Tensor, settings: _Settings) -> _Seen:
    """What is to be known of all words. Leaves exp(logit - largest) behind in `logits`."""
    goal = targets[:, None]
    largest = logits.amax(-1, keepdim=True)
    at_target = logits.gather(-1, goal)
    hits = _most_likely(logits, goal, at_target, largest, settings.dtype) if settings.correct else None
    mean = logits.mean(-1) if settings.means else None
    total = logits.sub_(largest).exp_().sum(-1)
    return largest[:, 0], total, at_target[:, 0], hits, mean


def _look_together(logits: torch.Tensor, targets: torch.Tensor, settings: _Settings) -> _Seen:
    """The same where each process has some of the words."""
    shard = settings.shard
    assert shard is not None
    goal, here = shard.local(targets)
    largest = shard.largest(logits.amax(-1))
    at_target = logits.gather(-1, goal[:, None])[:, 0].where(here, torch.zeros_like(largest))
    sums = logits[:, : shard.size].sum(-1)
    total = logits.sub_(largest[:, None]).exp_().sum(-1)
    total, at_target, sums = shard.add_up(total, at_target, sums)
    hits = (at_target >= largest).float() if settings.correct else None
    return largest, total, at_target, hits, sums / shard.vocabulary if settings.means else None


def _most_likely(
    logits: torch.Tensor, goal: torch.Tensor, at_target: torch.Tensor, largest: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    if dtype == torch.float32:  # argmax is several times slower on a CPU, and differs only where two logits are equal
        return (at_target >= largest)[:, 0].float()
    return (logits.argmax(-1, keepdim=True) == goal)[:, 0].float()


def _chunks(tokens: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))


def _blocks(logits: torch.Tensor, first: int) -> Iterator[tuple[torch.Tensor, slice]]:
    """Blocks of the rows of `logits`, and the tokens that they are when the first row is token `first`."""
    rows, vocabulary = logits.shape
    size = max(1, BLOCK_BYTES // (4 * vocabulary)) if logits.device.type == "cpu" else rows
    return ((logits[block], slice(first + block.start, first + block.stop)) for block in _chunks(rows, size))
