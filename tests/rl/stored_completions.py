"""Completions with numbers of their own, as a schedule gives them to a step, without a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from swift.contracts import ModelView
from swift.data.batch import MicroBatch, collate
from swift.data.samples import Encoded, Segment
from swift_rl.objective import Grpo
from swift_rl.options import GrpoOptions

PROMPT = 3
VALUES = ("advantages", "old_logps", "ref_logps", "is_weights")


def grpo(**options: Any) -> Grpo:
    return Grpo(GrpoOptions(**options))


def completion(number: int, length: int, *, without: tuple[str, ...] = ()) -> Encoded:
    """One completion of `length` tokens after a prompt of three; its numbers depend on `number` alone."""
    noise = np.random.default_rng(number)
    zeros = np.zeros(PROMPT, np.float32)
    made = {
        "advantages": np.full(length, noise.normal()),
        "old_logps": -noise.exponential(size=length),
        "ref_logps": -noise.exponential(size=length),
        "is_weights": noise.uniform(0.5, 1.5, size=length),
    }
    values = {
        name: np.concatenate([zeros, value.astype(np.float32)]) for name, value in made.items() if name not in without
    }
    tokens = noise.integers(1, 50, size=PROMPT + length).astype(np.int32)
    weights = np.concatenate([zeros, np.ones(length, np.float32)])
    return Encoded(number, (Segment(tokens, weights, values),))


def logps_of(samples: list[Encoded]) -> list[torch.Tensor]:
    """What a model says of the learned tokens of each sample: leaves of autograd, in float64."""
    sampled = []
    for sample in samples:
        noise = np.random.default_rng(1000 + sample.sample_id)
        length = len(sample.segments[0]) - PROMPT
        sampled.append(torch.tensor(-noise.exponential(size=length), dtype=torch.float64, requires_grad=True))
    return sampled


def viewed(batch: MicroBatch, logps: list[torch.Tensor]) -> ModelView:
    """The view that a backend would give: log-probabilities where there is weight, 0 elsewhere."""
    view = torch.zeros(batch.weights.shape, dtype=torch.float64)
    view = view.masked_scatter(batch.weights > 0, torch.cat(logps))
    return ModelView(token_logps=view, token_entropy=-view.detach())


def summed(objective: Grpo, samples: list[Encoded], cut: int, *, flat: bool, multiple: int = 1) -> Any:
    """Loss over the weight of all samples, gradients and metrics, in micro-batches of `cut` samples."""
    leaves = logps_of(samples)
    loss, metrics = torch.zeros((), dtype=torch.float64), dict[str, torch.Tensor]()
    for start in range(0, len(samples), cut):
        part = slice(start, start + cut)
        batch = collate(samples[part], flat=flat, pad_to_multiple=multiple)
        sums = objective.loss(viewed(batch, leaves[part]), batch)
        loss = loss + sums.loss
        for name, (total, weight) in sums.metrics.items():
            metrics[name] = metrics.get(name, torch.zeros(2)) + torch.tensor([float(total), float(weight)])
    loss = loss / objective.row_weight(samples)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    flat_gradient = torch.cat([torch.zeros_like(leaf) if each is None else each
                               for each, leaf in zip(gradients, leaves, strict=True)])  # fmt: skip
    return loss.detach(), flat_gradient, {name: float(pair[0] / pair[1]) for name, pair in metrics.items()}
