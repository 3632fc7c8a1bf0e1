"""From hidden states to one vector or score per segment. For use by backends.

Pooling is defined by a weight per position, [rows, width], made from the whole micro-batch. A backend that has a
part of the positions cuts these weights as it cuts all else, and adds up what its processes make of their parts: a
process without the last token of a segment contributes zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def pooling_weights(segment_ids: torch.Tensor, segments: int, how: str) -> torch.Tensor:
    """Return how much each position counts in the vector of its segment: float32, shape of `segment_ids`.

    'last' is 1 at the last token of each segment, 'cls' 1 at its first, 'mean' one part of its length everywhere.
    Padding, whose segment is -1, counts for nothing.
    """
    inside = segment_ids >= 0
    if how == "mean":
        lengths = torch.bincount(segment_ids[inside], minlength=segments).clamp(min=1)
        return inside / lengths[segment_ids.clamp(min=0)].float()
    edge = torch.full_like(segment_ids[:, :1], -1)
    neighbours = {
        "last": torch.cat([segment_ids[:, 1:], edge], dim=1),
        "cls": torch.cat([edge, segment_ids[:, :-1]], dim=1),
    }
    return (inside & (segment_ids != neighbours[how])).float()


def pooled(
    hidden: torch.Tensor,
    segment_ids: torch.Tensor,
    weights: torch.Tensor,
    segments: int,
    head: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float,
) -> torch.Tensor:
    """Return the weighted sums of hidden states [rows, width, size] over each segment: float32 [segments, size].

    With a `head`, of what it makes of the positions with weight: float32 [segments, labels].
    """
    indices = weights.flatten().nonzero()[:, 0]
    values = head(hidden.flatten(0, 1).index_select(0, indices)).float()
    values = values * weights.flatten().index_select(0, indices)[:, None]
    segment_of = segment_ids.flatten().index_select(0, indices)
    return values.new_zeros(segments, values.shape[-1]).index_add(0, segment_of, values)
