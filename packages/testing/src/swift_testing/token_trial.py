"""The kit's own objective over tokens, and a run that trains on it.

It reads values and candidates of tokens, a temperature, entropies and candidates' log-probabilities, and returns values
of tokens and vectors of segments: everything that online learning asks of a backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need, Objective
from swift.data.batch import Batch, MicroBatch, Row
from swift.data.samples import Encoded, SampleFacts
from swift.objectives.base import BaseObjective, viewed
from swift.train import Job

TEMPERATURE = 0.7
RATIO, ENTROPY = 0.2, 0.1
"""Of the loss: how strongly a probability ratio counts, and the bonus for entropy."""
TEACHER = (0.05, 0.1, 0.15, 0.2, 0.25)
"""Probabilities of the candidates that the loss pulls towards; the others share what is left."""
LEFT = 1.0 - sum(TEACHER)


def values_of(sample: int, length: int) -> dict[str, np.ndarray]:
    """Return an advantage and an old log-probability for each token of a sample."""
    angles = sample + 0.7 * np.arange(length)
    return {"advantage": np.sin(angles).astype(np.float32), "old": (np.cos(angles) - 3).astype(np.float32)}


def candidates_of(ids: Any) -> np.ndarray:
    """Return as many different tokens of the byte vocabulary for each token as `TEACHER` has."""
    first = np.asarray(ids, dtype=np.int64) + np.arange(len(ids)) % 3
    spread: np.ndarray = (first[:, None] + 13 * np.arange(len(TEACHER))) % 200
    return spread


class TokenObjective(BaseObjective[Section]):
    """A surrogate of policy gradients, a bonus for entropy, and a distillation from candidates, per target token."""

    name = "tokens"
    needs = frozenset({Need.TOKEN_LOGPS, Need.TOKEN_ENTROPY, Need.CANDIDATE_LOGPS})
    encoding = "chat"

    def __init__(self) -> None:
        super().__init__(Section())

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return the summed weights of the target tokens."""
        return sum(sample.loss_weight for sample in samples)

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return sums over the target tokens, and what was seen of each."""
        logps = viewed(view.token_logps, Need.TOKEN_LOGPS)
        entropy = viewed(view.token_entropy, Need.TOKEN_ENTROPY)
        rest = viewed(view.candidate_rest, Need.CANDIDATE_LOGPS)
        teacher = torch.tensor(TEACHER, device=logps.device)
        distilled = (viewed(view.candidate_logps, Need.CANDIDATE_LOGPS) * teacher).sum(-1) + LEFT * rest
        ratio = (RATIO * (logps - batch.token_values["old"])).exp()
        gain = batch.token_values["advantage"] * ratio + ENTROPY * entropy + distilled
        counted = torch.stack([batch.segment_sum(each * batch.weights) for each in (logps, entropy)], dim=-1)
        return LossSums(
            loss=-(gain * batch.weights).sum(),
            metrics={"entropy": ((entropy * batch.weights).sum(), batch.weights.sum())},
            segments=counted,
            tokens={"logps": logps, "entropy": entropy, "rest": rest, "advantage": batch.token_values["advantage"]},
        )


@dataclass
class TokenResults:
    """Results of `swift_forward` on one process for the first batch and the held-out samples."""

    tokens: list[tuple[int, Mapping[str, np.ndarray]]] = field(default_factory=list)
    """Sample → the values of its tokens."""
    segments: list[tuple[int, list[float]]] = field(default_factory=list)
    entropies: list[tuple[float, float]] = field(default_factory=list)
    """The metric of each batch."""


@dataclass
class TokenJob(Job):
    """A run whose batches have values and candidates of tokens, and whose objective reads them."""

    @classmethod
    def of(cls, job: Job) -> TokenJob:
        """Return a run that goes on with everything that `job` has made."""
        made = cls(**vars(job))
        made.objective = TokenObjective()
        return made

    def ready(self, batch: Batch, *, training: bool = False) -> tuple[Batch, Objective]:
        """Return the batch with its values, and the objective."""
        spare = None if batch.spare_row is None else _valued_row(batch.spare_row)
        rows = [_valued_row(row) for row in batch.rows]
        return replace(batch, rows=rows, spare_row=spare, temperature=TEMPERATURE), self.objective

    def results(self) -> TokenResults:
        """Return the results of a pass without gradient over the first batch and the held-out samples."""
        found = TokenResults()
        first = self.batch_schedule.batch(0, self.topology.data_rank, self.topology.data_size)
        for batch in (first, *(self.validation_batches() or ())):
            ready, objective = self.ready(batch)
            result: Any = self.hooks.swift_forward(self.run, self.state, ready, objective)
            samples = [sample.sample_id for row in batch.rows for sample in row]
            vectors = [] if result.segments is None else result.segments.tolist()
            found.tokens += zip(samples, result.tokens, strict=True)
            found.segments += zip(samples, vectors, strict=True)
            found.entropies.append(result.metrics["entropy"])
        return found


def _valued_row(row: Row) -> Row:
    return tuple(_valued(sample) for sample in row)


def _valued(sample: Encoded) -> Encoded:
    (segment,) = sample.segments
    values = values_of(sample.sample_id, len(segment))
    valued = replace(segment, token_values=values, candidates=candidates_of(segment.input_ids))
    return replace(sample, segments=(valued,))
