"""Views of a model that objectives ask for, and the sums that they return."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Need(StrEnum):
    """A view of the model's output that an objective can ask a backend for. Never the full logits.

    - `TOKEN_LOGPS`: log p(target) at every position, shape of `MicroBatch.targets`.
    - `TOKEN_CORRECT`: 1.0 where the target is the most likely token, without gradient.
    - `MEAN_LOGPS`: The mean over the vocabulary of log p, which label smoothing needs.
    - `REFERENCE_LOGPS`: Per segment, the reference model's summed log-probability (`MicroBatch.reference_logps`).
    - `TOKEN_ENTROPY`: Entropy in nats of the distribution over the vocabulary at every position.
    - `CANDIDATE_LOGPS`: log p of each of `MicroBatch.candidates`, and the log of the probability that is left for all
      other tokens.
    - `SCORES`: The outputs of a classification or reward head at the last token of each segment.
    - `VALUES`: The output of a value head at every position.
    - `POOLED`: One vector per segment: its embedding.
    """

    TOKEN_LOGPS = "token_logps"
    TOKEN_CORRECT = "token_correct"
    MEAN_LOGPS = "mean_logps"
    REFERENCE_LOGPS = "reference_logps"
    TOKEN_ENTROPY = "token_entropy"
    CANDIDATE_LOGPS = "candidate_logps"
    SCORES = "scores"
    VALUES = "values"
    POOLED = "pooled"


EVERY_VIEW = frozenset(Need)
"""All views, for the `Capabilities.provides` of a backend that builds its model by `swift.toolkit.build_view`, or has
them all in a way of its own."""


@dataclass
class LossSums:
    """An objective's sums over one micro-batch: never means, so that batches add up exactly.

    - `loss`: Sum over the micro-batch; the backend divides it by the weight of the *global* batch.
    - `metrics`: Name → (sum, weight); the reported value is the quotient of the global sums.
    - `segments`: One value per segment of the micro-batch, [segments], or one vector, [segments, size]; returned by
      `swift_forward`.
    - `tokens`: Name → one value per position, shape of `MicroBatch.targets`, or several, with one dimension more: the
      value at position t belongs to the token that t predicts. Returned by `swift_forward` as `ForwardResult.tokens`.
    - `reported`: The sum that is logged, evaluated and looked at for NaN instead of `loss`, where `loss` has the right
      gradient and nothing else.
    """

    loss: torch.Tensor
    metrics: dict[str, tuple[torch.Tensor, torch.Tensor | float]] = field(default_factory=dict)
    segments: torch.Tensor | None = None
    tokens: dict[str, torch.Tensor] = field(default_factory=dict)
    reported: torch.Tensor | None = None


@dataclass
class ModelView:
    """The output of a model for a micro-batch, in the views that the objective asked for.

    Views of positions are float32 at every position with weight and 0 elsewhere. All probabilities are those of
    softmax(logits / `MicroBatch.temperature`).

    - `token_logps`: [rows, width]
    - `token_correct`: [rows, width], without gradient.
    - `mean_logps`: [rows, width]
    - `token_entropy`: [rows, width], in nats.
    - `candidate_logps`: [rows, width, K]: log p of each of `MicroBatch.candidates`.
    - `candidate_rest`: [rows, width]: log of the probability of all tokens that are not candidates; -inf where there
      are none.
    - `scores`: [segments, labels]
    - `values`: [rows, width]
    - `pooled`: [segments, hidden size]
    - `router_loss`: The weighted losses of the routers of a mixture of experts, in training: a sum over all tokens of
      the micro-batch that this process computes. The backend divides it by `Batch.tokens`, and adds it to the
      objective's loss.
    - `router_aux_loss`: The balance loss without its weight and gradient, a sum over all tokens of the micro-batch.
    - `router_z_loss`: The z-loss in the same way.
    - `expert_load`: [layers, experts]: how many tokens of the micro-batch routers have sent to each expert.
    """

    token_logps: torch.Tensor | None = None
    token_correct: torch.Tensor | None = None
    mean_logps: torch.Tensor | None = None
    token_entropy: torch.Tensor | None = None
    candidate_logps: torch.Tensor | None = None
    candidate_rest: torch.Tensor | None = None
    scores: torch.Tensor | None = None
    values: torch.Tensor | None = None
    pooled: torch.Tensor | None = None
    router_loss: torch.Tensor | None = None
    router_aux_loss: torch.Tensor | None = None
    router_z_loss: torch.Tensor | None = None
    expert_load: torch.Tensor | None = None
