"""What an objective asks of a model and says about a batch.

Importable without torch: tensors appear in annotations only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from swift.data.batch import MicroBatch
    from swift.data.samples import SampleFacts


class Need(StrEnum):
    """A view of the model's output that an objective can ask a backend for. Never the full logits."""

    TOKEN_LOGPS = "token_logps"
    """log p(target) at every position, shape of `MicroBatch.targets`."""
    TOKEN_CORRECT = "token_correct"
    """1.0 where the target is the most likely token, without gradient."""
    MEAN_LOGPS = "mean_logps"
    """The mean over the vocabulary of log p, which label smoothing needs."""
    REFERENCE_LOGPS = "reference_logps"
    """Per segment, the reference model's summed log-probability (`MicroBatch.reference_logps`)."""
    HIDDEN = "hidden"
    """Last hidden state at every position."""
    SCORES = "scores"
    """One score per segment from a value or reward head."""


@dataclass
class LossSums:
    """What an objective says of one micro-batch: sums, never means, so that batches add up exactly."""

    loss: torch.Tensor
    """Sum over the micro-batch; the backend divides it by the weight of the *global* batch."""
    metrics: dict[str, tuple[torch.Tensor, torch.Tensor | float]] = field(default_factory=dict)
    """Name → (sum, weight); the reported value is the quotient of the global sums."""
    segments: torch.Tensor | None = None
    """One value per segment of the micro-batch, when the objective scores segments."""


@dataclass
class ModelView:
    """What the model says about a micro-batch, in the views that the objective asked for."""

    token_logps: torch.Tensor | None = None
    token_correct: torch.Tensor | None = None
    mean_logps: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    scores: torch.Tensor | None = None


class Objective(Protocol):
    """A pure function from a view of the model and a batch to sums.

    Entry points of the group `swift.objectives` name a class with these members; it is made as
    `cls(options)` where `options` is an instance of its `options_model`. One that needs reference log-probabilities
    may have an option `reference`: 'auto', 'adapter' or 'cached'.
    """

    name: str
    needs: frozenset[Need]
    encoding: str
    """How samples are encoded: 'text', 'chat', 'preference' or 'unpaired'."""
    adapters_off: bool
    """True when the model is to be viewed with its adapter switched off (a reference)."""
    baseline: Objective | None
    """Evaluated without gradient over the global batch before the step; see `given`."""

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """How much these samples weigh in the global normalisation; known before the step."""

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Sums over one micro-batch."""

    def given(self, metrics: Mapping[str, float]) -> Objective:
        """This objective with the global metrics of its baseline filled in."""
