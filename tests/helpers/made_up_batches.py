"""Batches with made-up log-probabilities, so that objectives are tested without a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from swift.contracts import LossSums, ModelView, Objective
from swift.data.batch import Batch, MicroBatch, collate
from swift.data.samples import Encoded, Segment


def segment(random: np.random.Generator, prompt: int, completion: int) -> Segment:
    """A prompt that isn't learned and a completion that is."""
    weights = np.concatenate([np.zeros(prompt), np.ones(completion)]).astype(np.float32)
    return Segment(random.integers(1, 50, prompt + completion).astype(np.int32), weights)


def pairs(count: int = 6, *, completion: int | None = None) -> list[Encoded]:
    """Samples of two segments with reference scores and a label; completions differ in length unless it is given."""
    random = np.random.default_rng(0)
    made = []
    for n in range(count):
        lengths = [completion or int(random.integers(2, 9)) for _ in range(2)]
        segments = tuple(segment(random, 3, length) for length in lengths)
        reference = -np.array([2.0 * length for length in lengths]) + random.normal(0, 2, 2)
        made.append(Encoded(n, segments, {"label": float(n % 3 != 0)}, reference.astype(np.float32)))
    return made


def view_of(batch: MicroBatch) -> ModelView:
    """Log-probabilities that depend on the token, its place and its sample, so that any layout gives the same."""
    samples = torch.tensor(batch.sample_ids).repeat_interleave(batch.segments // len(batch.sample_ids))
    place = batch.position_ids.double()
    token = batch.targets.double()
    sample = samples[batch.segment_ids.clamp(min=0)].double()
    logps = -2 - 1.9 * torch.sin(token * 1.7 + place * 0.9 + sample)
    return ModelView(
        token_logps=logps.float().requires_grad_(),
        token_correct=(token % 2).float(),
        mean_logps=(logps.float() - 1).detach(),
    )


def sums_of(objective: Objective, samples: list[Encoded], *, flat: bool = False) -> LossSums:
    batch = collate(samples, flat=flat)
    return objective.loss(view_of(batch), batch)


def muted(samples: list[Encoded]) -> MicroBatch:
    """The micro-batch of a process that has no row of a short batch."""
    batch = Batch(
        step=0, rows=(), first_row=0, micro_rows=1, weight=1.0, global_rows=1, tokens=1, flat=False, seed=0,
        spare_row=tuple(samples),
    )  # fmt: skip
    return next(batch.micro_batches())


def summed_logps(samples: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    """[samples, 2] summed log-probabilities of the completions, and how many tokens they have; by plain loops."""
    sums, counts = [], []
    for sample in samples:
        for n in range(2):
            alone = collate([replace(sample, segments=(sample.segments[n],), reference_logps=None)], flat=False)
            keep = alone.weights > 0
            sums.append(view_of(alone).token_logps[keep].sum())
            counts.append(int(keep.sum()))
    return torch.stack(sums).view(-1, 2), torch.tensor(counts).view(-1, 2).float()


def references(samples: list[Encoded]) -> torch.Tensor:
    return torch.from_numpy(np.stack([sample.reference_logps for sample in samples]))
