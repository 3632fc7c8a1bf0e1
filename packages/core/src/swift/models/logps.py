"""Log-probabilities of target tokens, without the logits of all tokens at once.

The output layer's logits are by far the largest tensor of a training step: tokens × vocabulary. Here they exist for
a chunk of tokens at a time and are computed again in the backward pass; where all of them are small they are kept,
once, and turned into their own gradient in place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch.utils.checkpoint import checkpoint

from swift.contracts import ModelView, Need
from swift.kernels import kernels_for
from swift.models.logits import LogitTransform, VocabularyShard
from swift.models.logps_autograd import HeadLogps, Settings, chunks

KEEP_BYTES = 64 * 2**20
"""Logits up to this size are kept for the backward pass."""
CHUNK_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}
"""Size of a chunk of logits, by type of device."""
MIN_CHUNK = 128
"""Tokens of a chunk at least: fewer would leave the matrix multiplication waiting for the weights."""


@dataclass
class TokenViews:
    """Views of tokens, each [tokens] in fp32; what was not requested is zero, or None where it may be."""

    logps: torch.Tensor
    """log p(target)"""
    correct: torch.Tensor
    """1.0 where the target is the most likely token."""
    mean_logps: torch.Tensor
    """The vocabulary's mean of log p."""
    entropy: torch.Tensor | None = None
    candidate_logps: torch.Tensor | None = None
    """[tokens, K]"""
    candidate_rest: torch.Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[Sequence[torch.Tensor | None]]) -> TokenViews:
        """Return the chunks' results, end to end."""
        columns = [[each for each in column if each is not None] for column in zip(*parts, strict=True)]
        joined: Any = [torch.cat(column) if column else None for column in columns]
        return cls(*joined)

    def laid_out(self, spread: Callable[[torch.Tensor], torch.Tensor], needs: Collection[Need]) -> ModelView:
        """Return those that are among `needs` as the views of a micro-batch.

        `spread` puts [tokens] or [tokens, K] to their positions in [rows, width] or [rows, width, K].
        """

        def laid(values: torch.Tensor | None, need: Need) -> torch.Tensor | None:
            return None if values is None or need not in needs else spread(values)

        return ModelView(
            token_logps=laid(self.logps, Need.TOKEN_LOGPS),
            token_correct=laid(self.correct, Need.TOKEN_CORRECT),
            mean_logps=laid(self.mean_logps, Need.MEAN_LOGPS),
            token_entropy=laid(self.entropy, Need.TOKEN_ENTROPY),
            candidate_logps=laid(self.candidate_logps, Need.CANDIDATE_LOGPS),
            candidate_rest=laid(self.candidate_rest, Need.CANDIDATE_LOGPS),
        )


def token_logps(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    transform: LogitTransform | None = None,
    candidates: torch.Tensor | None = None,
    want: Collection[Need] = (Need.TOKEN_LOGPS,),
    chunk_tokens: int | None = None,
    keep_bytes: int | None = None,
    shard: VocabularyShard | None = None,
) -> TokenViews:
    """View `targets` [tokens] under the head `weight` [vocabulary, width] applied to `hidden` [tokens, width].

    Matrix products run in the autocast precision, or the weight's; everything after them in fp32. Of `TokenViews`,
    only what is in `want` is computed. `candidates` [tokens, K] are for `Need.CANDIDATE_LOGPS`. With a `shard` other
    processes have other rows of the head, and the same hidden states, targets and candidates.
    """
    candidates = _requested(candidates, want)
    tokens, vocabulary = hidden.shape[0], weight.shape[0]
    transform = transform or LogitTransform()
    everything = shard is None and _is_everything(candidates, vocabulary)
    dtype = _product_dtype(weight)
    fused = candidates is None and bias is None and shard is None and transform.softcap is None and kernels_for(hidden)
    if keep_bytes is None:
        keep_bytes = _keep_bytes(hidden.device) if fused else KEEP_BYTES
    small = tokens * vocabulary * (dtype.itemsize if fused else 4) <= keep_bytes
    # Kernels keep nothing in fp32 of the size of logits: four times as many tokens take as much memory.
    size = tokens_per_chunk(vocabulary, hidden.device.type) * (4 if fused else 1)
    settings = Settings(
        transform=transform,
        dtype=dtype,
        chunk=max(1, tokens) if small else chunk_tokens or size,
        vocabulary=vocabulary if shard is None else shard.vocabulary,
        # Entropy and candidates need the logits themselves again, which only kernels leave there.
        keep=small
        and torch.is_grad_enabled()
        and (fused or (transform.softcap is None and Need.TOKEN_ENTROPY not in want and candidates is None)),
        correct=Need.TOKEN_CORRECT in want,
        means=Need.MEAN_LOGPS in want,
        entropy=Need.TOKEN_ENTROPY in want,
        everything=everything,
        shard=shard,
        fused=fused,
    )
    candidates = None if everything else candidates
    return TokenViews(*cast("Any", HeadLogps.apply)(hidden, weight, bias, targets, candidates, settings))


def token_logps_of_module(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    *,
    vocabulary: int,
    transform: LogitTransform | None = None,
    candidates: torch.Tensor | None = None,
    want: Collection[Need] = (Need.TOKEN_LOGPS,),
    chunk_tokens: int | None = None,
    keep_bytes: int = KEEP_BYTES,
) -> TokenViews:
    """Do the same through a head that is more than a matrix (adapters, quantised weights, hooks), by checkpointing."""
    transform = transform or LogitTransform()
    candidates = _requested(candidates, want)
    everything = _is_everything(candidates, vocabulary)

    def view(
        piece: torch.Tensor, piece_targets: torch.Tensor, piece_candidates: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        logits = transform(head(piece))
        normaliser = logits.logsumexp(-1)
        logps = logits.gather(-1, piece_targets[:, None])[:, 0] - normaliser
        nothing = torch.zeros_like(logps, requires_grad=False)
        correct = (logits.detach().argmax(-1) == piece_targets).float() if Need.TOKEN_CORRECT in want else nothing
        means = logits.mean(-1) - normaliser if Need.MEAN_LOGPS in want else nothing
        entropy = _entropy(logits) if Need.TOKEN_ENTROPY in want else None
        if everything:
            nothing_else = logps * 0 - torch.inf
            return logps, correct, means, entropy, logits - normaliser[:, None], nothing_else
        if piece_candidates is None:
            return logps, correct, means, entropy
        at_candidates = logits.gather(-1, piece_candidates) - normaliser[:, None]
        return logps, correct, means, entropy, at_candidates, _rest(logits, piece_candidates, normaliser)

    tokens = hidden.shape[0]
    if tokens * vocabulary * 4 <= keep_bytes:
        return TokenViews.joined([view(hidden, targets, candidates)])
    size = chunk_tokens or tokens_per_chunk(vocabulary, hidden.device.type)
    pieces = [
        (hidden[rows], targets[rows], None if candidates is None else candidates[rows]) for rows in chunks(tokens, size)
    ]
    return TokenViews.joined([checkpoint(view, *piece, use_reentrant=False) for piece in pieces])


def at_positions(candidates: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the candidates [rows, width, K] of some tokens; those that all tokens share stay in the memory of one."""
    if candidates.numel() and candidates.stride()[:2] == (0, 0):
        return candidates[0, 0].expand(len(positions), -1)
    return candidates.flatten(0, 1).index_select(0, positions)


def tokens_per_chunk(vocabulary: int, device: str) -> int:
    """Return how many tokens may have all their logits in memory at once on a type of device."""
    return max(MIN_CHUNK, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // (4 * vocabulary))


@cache
def _keep_bytes(device: torch.device) -> int:
    """Return up to which size products are kept for the backward pass on a device: a fiftieth of what it has."""
    whole = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    return max(KEEP_BYTES, whole // 50)


def _product_dtype(weight: torch.Tensor) -> torch.dtype:
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def _requested(candidates: torch.Tensor | None, want: Collection[Need]) -> torch.Tensor | None:
    if Need.CANDIDATE_LOGPS not in want:
        return None
    if candidates is None:
        raise ValueError("the batch has no candidates, which the objective needs")
    return candidates


def _is_everything(candidates: torch.Tensor | None, vocabulary: int) -> bool:
    """Return whether the candidates of all tokens are the whole vocabulary in its order."""
    if candidates is None or candidates.shape[-1] != vocabulary or not len(candidates) or candidates.stride(0):
        return False
    return torch.equal(candidates[0], torch.arange(vocabulary, device=candidates.device))


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    logps = logits.log_softmax(-1)
    likely = logps.exp()
    # What has no probability has no gradient either, not even where its logit is -inf.
    return -(likely * logps.where(likely > 0, torch.zeros_like(logps))).sum(-1)


def _rest(logits: torch.Tensor, candidates: torch.Tensor, normaliser: torch.Tensor) -> torch.Tensor:
    """Return the log of the probability of all tokens but the candidates."""
    others = logits.scatter(-1, candidates, -torch.inf)
    nothing = (others == -torch.inf).all(-1)
    # Where nothing is left, the gradient is zero rather than undefined.
    left = others.masked_fill(nothing[:, None], 0.0).logsumexp(-1) - normaliser
    return left.clamp(max=0.0).masked_fill(nothing, -torch.inf)
