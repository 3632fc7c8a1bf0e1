"""The arithmetic of `embedding`: from vectors of queries and documents to one loss per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from swift.data import GlobalSegments
from swift.objectives.across_rows import Compared

if TYPE_CHECKING:
    from swift_objectives.embedding_options import EmbeddingOptions


BLOCK = 1 << 23
"""Similarities that are held at a time; those of more are computed again for the gradient, block by block."""


@dataclass(frozen=True)
class Roles:
    """Roles of the segments in their samples: query, positive or negative."""

    sample: torch.Tensor
    """[segments]: index of the sample."""
    position: torch.Tensor
    """[segments]: index within the sample; 0 is the query."""
    positive: torch.Tensor
    """[segments], bool."""
    copies: torch.Tensor
    """[segments]: how often a document counts among the negatives; 0 in a dummy."""
    queries: torch.Tensor
    """[samples]: index of the segment that is the query."""
    active: torch.Tensor
    """[samples], bool: False for a dummy."""
    text: torch.Tensor
    """[segments]: equal numbers from 0 on for equal texts."""
    positive_keys: torch.Tensor
    """Sorted: sample * (number of texts) + text, for each text that is a positive of the sample."""

    @classmethod
    def of(cls, samples: GlobalSegments, hard_negatives: int | None) -> Roles:
        """Return the roles; with `hard_negatives`, the negatives of a sample count as if they were so many."""
        sample = samples.sample_of
        positives = samples.values["positives"].long()
        active = torch.zeros_like(positives).index_add(0, sample, samples.counts.long()) > 0
        position = torch.arange(len(sample), device=sample.device) - samples.firsts[sample]
        copies = torch.ones_like(position)
        if hard_negatives is not None:
            number = (samples.sample_segments - 1 - positives)[sample].clamp(min=1)
            at = position - 1 - positives[sample]
            copies = torch.where(at >= 0, hard_negatives // number + (at < hard_negatives % number), copies)
        positive = (position > 0) & (position <= positives[sample]) & active[sample]
        known, text = torch.unique(samples.hashes, return_inverse=True)
        positive_keys = torch.unique((sample * len(known) + text)[positive])
        return cls(sample, position, positive, copies * active[sample], samples.firsts, active, text, positive_keys)

    def is_positive(self, samples: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """Return whether the text of each segment is a positive of the sample, whichever row it is from."""
        if not len(self.positive_keys):
            return torch.zeros_like(samples * segments, dtype=torch.bool)
        keys = samples * (int(self.text.max()) + 1) + self.text[segments]
        return (
            self.positive_keys[torch.searchsorted(self.positive_keys, keys).clamp(max=len(self.positive_keys) - 1)]
            == keys
        )


def infonce(vectors: torch.Tensor, roles: Roles, options: EmbeddingOptions) -> Compared:
    """Return the cross entropy of finding each positive; of several positives of a query, the mean of their losses.

    The other positives of a query are no negatives of it.
    """
    positives = roles.positive.nonzero()[:, 0]
    size = max(1, BLOCK // max(1, len(vectors)))
    blocks = [positives[start : start + size] for start in range(0, max(1, len(positives)), size)]
    if len(blocks) == 1:
        losses, found, best = _of_positives(vectors, positives, roles, options)
    else:
        parts = [
            checkpoint(_of_positives, vectors, block, roles, options, use_reentrant=False, preserve_rng_state=False)
            for block in blocks
        ]
        losses, found, best = (torch.cat(each) for each in zip(*parts, strict=True))
    rows_of = roles.sample[positives]
    zeros = vectors.new_zeros(len(roles.queries))
    own_positives = zeros.index_add(0, rows_of, torch.ones_like(found))[rows_of]
    first = roles.position[positives] == 1  # one of the positives of each query
    active = roles.active.to(vectors.dtype)
    return Compared(
        zeros.index_add(0, rows_of, losses / own_positives),
        {
            "recall_at_1": (zeros.index_copy(0, rows_of[first], best[first].to(vectors.dtype)), active),
            "similarity_positive": (zeros.index_add(0, rows_of, found / own_positives), active),
        },
    )


def _of_positives(
    vectors: torch.Tensor, positives: torch.Tensor, roles: Roles, options: EmbeddingOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return of some positives the loss, the similarity to the query, and whether the query's nearest is right."""
    documents = (roles.position > 0).nonzero()[:, 0]
    rows_of = roles.sample[positives]
    own_queries, meant, asking = vectors[roles.queries[rows_of]], vectors[positives], vectors[roles.queries]
    similar = own_queries @ vectors[documents].T  # [positives, documents]
    target = positives[:, None] == documents
    own = rows_of[:, None] == roles.sample[documents]
    equal = roles.is_positive(rows_of[:, None], documents[None])
    right = equal if options.mask_duplicates else own & roles.positive[documents]
    strange = torch.zeros_like(own) if options.in_batch_negatives else ~own
    copies = roles.copies[documents].to(vectors.dtype).log()  # -inf for dummies
    found = similar[target]
    ceiling = (found.detach() + options.false_negative_margin)[:, None]

    def logits(similar: torch.Tensor, left_out: torch.Tensor) -> torch.Tensor:
        return (similar / options.temperature).masked_fill(left_out, -torch.inf)

    def too_near(similar: torch.Tensor) -> torch.Tensor:
        return similar > ceiling if options.mask_false_negatives else torch.zeros_like(similar, dtype=torch.bool)

    parts = [logits(similar, strange | ((right | too_near(similar)) & ~target)) + copies]
    if options.include_qq:
        others = own_queries @ asking.T
        itself = _same_query(rows_of, roles, options)
        parts.append(logits(others, itself | ~roles.active | too_near(others)))
    if options.include_dd:  # not masked by the margin: neither do Qwen3-Embedding and ms-swift
        parts.append(logits(meant @ vectors[documents].T, right) + copies)
    losses = torch.cat(parts, dim=1).logsumexp(1) - found / options.temperature
    if options.symmetric:
        samples = torch.arange(len(asking), device=rows_of.device)
        alike = _same_query(rows_of, roles, options)
        if options.mask_duplicates:
            alike = alike | roles.is_positive(samples[None], positives[:, None])
        left_out = ~roles.active | (alike & (rows_of[:, None] != samples))
        back = logits(meant @ asking.T, left_out).logsumexp(1)
        losses = (losses + back - found / options.temperature) / 2
    candidates = similar.detach().masked_fill(strange | (copies == -torch.inf), -torch.inf)
    best = equal.gather(1, candidates.argmax(1, keepdim=True))[:, 0]
    return losses, found.detach(), best


def _same_query(rows_of: torch.Tensor, roles: Roles, options: EmbeddingOptions) -> torch.Tensor:
    """Return which queries are those of these samples, or have the same text, [of samples, queries]."""
    if options.mask_duplicates:
        query_keys = roles.text[roles.queries]
        return query_keys[rows_of][:, None] == query_keys
    return rows_of[:, None] == torch.arange(len(roles.queries), device=rows_of.device)


def labelled_pairs(vectors: torch.Tensor, roles: Roles, labels: torch.Tensor, options: EmbeddingOptions) -> Compared:
    """Return the loss of each pair of texts by its label, [samples]: how similar they are, or 1 and 0."""
    similar = torch.cosine_similarity(vectors[roles.queries], vectors[roles.queries + 1])
    active = roles.active.to(vectors.dtype)
    if options.loss == "cosine_similarity":
        metrics = {"similarity_error": ((similar - labels).detach().abs(), active)}
        return Compared((similar - labels).square() * active, metrics)
    distances = 1 - similar
    same, different = (roles.active & (labels == 1)), (roles.active & (labels != 1))
    near = (options.margin - distances).clamp(min=0).square()
    if options.loss == "contrastive":
        losses = (same * distances.square() + different * near) / 2
    else:
        losses = _hard(distances, same, different) * distances.square() + _hard(-distances, different, same) * near
    parts = {"similarity_positive": same, "similarity_negative": different}
    return Compared(losses, {name: (similar.detach(), part.to(vectors.dtype)) for name, part in parts.items()})


def _hard(distances: torch.Tensor, these: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return which of `these` are farther than the nearest of `others`; without two of those, than their mean."""
    distances = distances.detach()
    if others.sum() > 1:
        limit = distances[others].min()
    else:
        limit = distances[these].mean() if these.any() else distances.new_zeros(())
    return these & (distances > limit)
