"""Scores of sequences with the most likely tokens at each position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from swift.contracts import Score
from swift.data.batch import MicroBatch
from swift.models import ViewModule


def scores_with_top(view: ViewModule, batch: MicroBatch, top: int) -> Iterator[Score]:
    """Yield the score of each segment of a padded batch, with the `top` most likely tokens at each position.

    If `top` is at least the size of the vocabulary, they are all tokens in order of their ids.
    """
    targets = batch.targets.flatten()[batch.weights.flatten().nonzero()[:, 0]]
    counts = (batch.weights > 0).sum(-1).tolist()
    own, likeliest, ids, logps = [], [], [], []
    start, vocabulary = 0, 0
    for logits in view.logits(batch):
        every = logits.log_softmax(-1)
        here = targets[start : start + len(every)]
        start, vocabulary = start + len(every), every.shape[-1]
        own.append(every.gather(-1, here[:, None])[:, 0])
        likeliest.append(logits.argmax(-1) == here)
        if top < vocabulary:
            best = every.topk(top, dim=-1)
            ids.append(best.indices.to(torch.int32))
        logps.append(best.values if top < vocabulary else every)
    of_each = [torch.split(_joined(each), counts) for each in (own, likeliest, logps)]
    if ids:
        choices = [each.numpy() for each in torch.split(_joined(ids), counts)]
    else:  # unsorted, as a view of one row
        choices = [np.broadcast_to(np.arange(vocabulary, dtype=np.int32), (count, vocabulary)) for count in counts]
    for values, hits, chosen, logprobs in zip(*of_each[:2], choices, of_each[2], strict=True):
        yield Score(values.tolist(), hits.tolist(), chosen, logprobs.numpy())


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return (parts[0] if len(parts) == 1 else torch.cat(list(parts))).cpu()
