"""The contract of objectives: the views of a model that they ask for, and the sums that they return.

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
    from swift.data.encodings import Encoding
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


class Objective(Protocol):
    """A pure function from a view of the model and a batch to sums.

    Entry points of the group `swift.objectives` name a class with these members; it is made as
    `cls(options)` where `options` is an instance of its `options_model`. One that needs reference log-probabilities
    may have an option `reference`: 'auto', 'adapter' or 'cached'.

    An objective may also have a method `batch_schedule(context: ScheduleContext) -> BatchSchedule`, which decides which samples each step
    takes and may make them itself, in rounds; without it they are those of the data set, epoch after epoch.

    These members are optional too; `BaseObjective` has the first two, `swift.objectives.across_rows.AcrossRows` the
    first four.

    - `for_tokenizer(tokenizer) -> Objective` is called once, before data is read, and returns the objective for this
      tokenizer.
    - `candidates: tuple[int, ...]` are the tokens whose probabilities `Need.CANDIDATE_LOGPS` gives at every position,
      for samples that bring no candidates of their own.
    - `first_pass: Objective | None` is for losses that compare the rows of the global batch with each other. It is
      evaluated without gradient over the global batch before the step, with the dropout of the step, and returns one
      vector per segment as `LossSums.segments`.
    - `from_first_pass(vectors, samples: GlobalSegments) -> Mapping[str, Tensor]` is given these vectors of the whole
      global batch, [segments, size] in float64, the same on every process. What it returns, name → [segments, ...],
      becomes `MicroBatch.segment_values` of the step. `loss` then is a sum over segments whose gradient is that of
      the loss of the global batch, and `LossSums.reported` the loss itself. Where one micro-batch is the whole global
      batch there is no first pass: `segment_values` is empty, and `loss` computes the same from the view.
    - `task: str` is `model.task` where the user names none, `causal_lm` without it, and `num_labels: int | None` is
      how many labels a head must have for the objective.
    - `defaults: Mapping[str, tuple[Any, str]]`, of the class, are key → (value, reason): the values of keys in other
      sections where the user sets none, such as `{"tuner.dropout": (0.0, "the reason")}`. The reason ends the line in
      which the user is told. Keys that name a plugin have no such defaults.
    - `for_model(section: ModelSection) -> Objective` is called once the configuration is known, and returns the
      objective for the model of its section `model`.
    - `check_config(config)` is called once, before data is read, with the configuration of the model as transformers
      has it, and raises where the objective's options do not fit the model.
    - `roles(config: Config) -> Sequence[ModelRole]` is called once, before data is read, and returns the models that
      the run holds besides its policy. The objective's schedule reaches them by `ScheduleContext.role`.
    - `rounds(config: Config) -> RoundWork` is for planners, and says what the objective's schedule holds and does besides
      the steps of the policy and of its roles: answers that are drawn, models that are asked.
    - `for_training_set(samples: SampleSet | None, say) -> Objective` is called once, after data is read and before the
      model is loaded, with the samples that are learned from, the same on every process (None for a stream), and
      returns the objective for them. `say` prints a line for the user.
    """

    name: str
    needs: frozenset[Need]
    adapters_off: bool
    """True when the model is to be viewed with its adapter switched off (a reference)."""
    baseline: Objective | None
    """Evaluated without gradient over the global batch before the step; see `with_baseline`."""

    @property
    def encoding(self) -> str | Encoding:
        """How rows become samples: 'text', 'chat', 'preference', 'unpaired', or an `Encoding` of the plugin's own."""

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return how much these samples weigh in the global normalisation; known before the step."""

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sums over one micro-batch."""

    def with_baseline(self, metrics: Mapping[str, float]) -> Objective:
        """Return this objective with the global metrics of its baseline filled in."""
