"""Scores of texts that also tell the likeliest tokens in place of each of their own."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from swift.contracts import Score
from swift.data.batch import MicroBatch
from swift.models.view import ViewModule


def scores_with_likeliest(view: ViewModule, batch: MicroBatch, top: int) -> Iterator[Score]:
    """Yield the score of each segment of a padded batch, all of whose tokens count, with `top` likeliest tokens each.

    As many as there are where `top` is more than the vocabulary.
    """
    targets = batch.targets.flatten()[batch.weights.flatten().nonzero()[:, 0]]
    own, likeliest, ids, logps = [], [], [], []
    start = 0
    for logits in view.logits(batch):
        every = logits.log_softmax(-1)
        here = targets[start : start + len(every)]
        start += len(every)
        best = every.topk(min(top, every.shape[-1]), dim=-1)
        own.append(every.gather(-1, here[:, None])[:, 0])
        likeliest.append(logits.argmax(-1) == here)
        ids.append(best.indices.to(torch.int32))
        logps.append(best.values)
    counts = (batch.weights > 0).sum(-1).tolist()
    columns = [torch.split(torch.cat(each).cpu(), counts) for each in (own, likeliest, ids, logps)]
    for of_one in zip(*columns, strict=True):
        yield Score(of_one[0].tolist(), of_one[1].tolist(), of_one[2].numpy(), of_one[3].numpy())
