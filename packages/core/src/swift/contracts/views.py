"""Views of a model that objectives ask for, and the sums that they return."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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
    TOKEN_ENTROPY = "token_entropy"
    """Entropy in nats of the distribution over the vocabulary at every position."""
    CANDIDATE_LOGPS = "candidate_logps"
    """log p of each of `MicroBatch.candidates`, and the log of the probability that is left for all other tokens."""
    SCORES = "scores"
    """The outputs of a classification or reward head at the last token of each segment."""
    VALUES = "values"
    """The output of a value head at every position."""
    POOLED = "pooled"
    """One vector per segment: its embedding."""


EVERY_VIEW = frozenset(Need)
"""All views, for the `Capabilities.provides` of a backend that builds its model by `swift.toolkit.build_view`, or has
them all in a way of its own."""


@dataclass
class LossSums:
    """An objective's sums over one micro-batch: never means, so that batches add up exactly."""

    loss: torch.Tensor
    """Sum over the micro-batch; the backend divides it by the weight of the *global* batch."""
    metrics: dict[str, tuple[torch.Tensor, torch.Tensor | float]] = field(default_factory=dict)
    """Name → (sum, weight); the reported value is the quotient of the global sums."""
    segments: torch.Tensor | None = None
    """One value per segment of the micro-batch, [segments], or one vector, [segments, size]; returned by
    `swift_forward`."""
    tokens: dict[str, torch.Tensor] = field(default_factory=dict)
    """Name → one value per position, shape of `MicroBatch.targets`, or several, with one dimension more: the value at
    position t belongs to the token that t predicts. Returned by `swift_forward` as `ForwardResult.tokens`."""
    reported: torch.Tensor | None = None
    """The sum that is logged, evaluated and looked at for NaN instead of `loss`, where `loss` has the right gradient
    and nothing else."""


@dataclass
class ModelView:
    """The output of a model for a micro-batch, in the views that the objective asked for.

    Views of positions are float32 at every position with weight and 0 elsewhere. All probabilities are those of
    softmax(logits / `MicroBatch.temperature`).
    """

    token_logps: torch.Tensor | None = None
    """[rows, width]"""
    token_correct: torch.Tensor | None = None
    """[rows, width], without gradient."""
    mean_logps: torch.Tensor | None = None
    """[rows, width]"""
    token_entropy: torch.Tensor | None = None
    """[rows, width], in nats."""
    candidate_logps: torch.Tensor | None = None
    """[rows, width, K]: log p of each of `MicroBatch.candidates`."""
    candidate_rest: torch.Tensor | None = None
    """[rows, width]: log of the probability of all tokens that are not candidates; -inf where there are none."""
    scores: torch.Tensor | None = None
    """[segments, labels]"""
    values: torch.Tensor | None = None
    """[rows, width]"""
    pooled: torch.Tensor | None = None
    """[segments, hidden size]"""
    router_loss: torch.Tensor | None = None
    """The weighted losses of the routers of a mixture of experts, in training: a sum over all tokens of the micro-batch
    that this process computes. The backend divides it by `Batch.tokens`, and adds it to the objective's loss."""
    router_aux_loss: torch.Tensor | None = None
    """The balance loss without its weight and gradient, a sum over all tokens of the micro-batch."""
    router_z_loss: torch.Tensor | None = None
    """The z-loss in the same way."""
    expert_load: torch.Tensor | None = None
    """[layers, experts]: how many tokens of the micro-batch routers have sent to each expert."""
