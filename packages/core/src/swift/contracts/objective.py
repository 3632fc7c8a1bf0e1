"""The contract of objectives: the views of a model that they ask for, and the sums that they return.

Importable without torch: tensors appear in annotations only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from swift.contracts.rounds import RoundWork

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from swift.config.sections import Config, ModelSection
    from swift.contracts.role import ModelRole
    from swift.contracts.schedule import BatchSchedule, ScheduleContext
    from swift.data.batch import MicroBatch
    from swift.data.encodings import Encoding
    from swift.data.global_segments import GlobalSegments
    from swift.data.samples import SampleFacts
    from swift.data.store import SampleSet


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


class Objective(ABC):
    """Base class of objectives: a pure function from a view of the model and a batch to sums.

    Entry points of the group `swift.objectives` name a subclass with `options_model`; it is made as `cls(options)`,
    where `options` is an instance of its `options_model`. One that needs reference log-probabilities may have an option
    `reference`: 'auto', 'adapter' or 'cached'. A subclass defines `name`, `row_weight` and `loss`; the other members
    have the usual values. `swift.objectives.base` has bases for losses per token and per sample, and
    `swift.objectives.across_rows.AcrossRows` one for losses that compare rows with each other.
    """

    options_model: ClassVar[type[BaseModel]]
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {}
    """Key → (value, reason): values of keys in other sections where the user sets none, such as
    `{"tuner.dropout": (0.0, "the reason")}`. The reason ends the line that tells the user. Keys that name a plugin have
    no such defaults."""
    name: str
    needs: frozenset[Need] = frozenset({Need.TOKEN_LOGPS})
    encoding: str | Encoding = "chat"
    """How rows become samples: 'text', 'chat', 'preference', 'unpaired', or an `Encoding` of the plugin's own."""
    task: str = "causal_lm"
    """`model.task` where the user names none."""
    num_labels: int | None = None
    """How many labels a head must have for the objective."""
    adapters_off: bool = False
    """True when the model is to be viewed with its adapter switched off (a reference)."""
    candidates: tuple[int, ...] = ()
    """Tokens whose probabilities `Need.CANDIDATE_LOGPS` gives at every position, for samples that bring no candidates
    of their own."""
    baseline: Objective | None = None
    """Evaluated without gradient over the global batch before the step; see `with_baseline`."""
    first_pass: Objective | None = None
    """For losses that compare the rows of the global batch with each other. Evaluated without gradient over the global
    batch before the step, with the dropout of the step; returns one vector per segment as `LossSums.segments`. Where
    one micro-batch is the whole global batch there is no first pass: `MicroBatch.segment_values` is empty, and `loss`
    computes the same from the view."""

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return how much these samples weigh: the sum of losses of the global batch is divided by it.

        Known before the step. There is no default: the number of samples divides a loss per token wrongly, and the
        other way round.
        """

    @abstractmethod
    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sums over one micro-batch."""

    def with_baseline(self, metrics: Mapping[str, float]) -> Objective:
        """Return this objective with the global metrics of its baseline filled in."""
        return self

    def from_first_pass(self, vectors: torch.Tensor, samples: GlobalSegments) -> Mapping[str, torch.Tensor]:
        """Return what becomes `MicroBatch.segment_values` of the step: name → [segments, ...].

        `vectors` are those of the first pass over the global batch, [segments, size] in float64, the same on every
        process. `loss` then is a sum over segments whose gradient is that of the loss of the global batch, and
        `LossSums.reported` the loss itself.
        """
        raise NotImplementedError(f"{type(self).__name__} has a first pass and no from_first_pass")

    def for_model(self, section: ModelSection) -> Objective:
        """Return the objective for the model of the section `model`; called once the configuration is known."""
        return self

    def for_tokenizer(self, tokenizer: Any) -> Objective:
        """Return the objective for this tokenizer; called once, before data is read."""
        return self

    def check_config(self, config: Any) -> None:  # noqa: B027 - most options fit every model
        """Raise `ConfigError` where the options do not fit the model, whose transformers configuration this is.

        Called once, before data is read.
        """

    def roles(self, config: Config) -> Sequence[ModelRole]:
        """Return the models that the run holds besides its policy, for `ScheduleContext.role`.

        Called once, before data is read.
        """
        return ()

    def rounds(self, config: Config) -> RoundWork:
        """Return, for planners, what its schedule holds and does besides the steps of the models of the run."""
        return RoundWork()

    def for_training_set(self, samples: SampleSet | None, say: Callable[[str], None]) -> Objective:
        """Return the objective for the samples to train on, the same on every process; None stands for a stream.

        Called once, after data is read and before the model is loaded. `say` prints a line for the user.
        """
        return self

    def batch_schedule(self, context: ScheduleContext) -> BatchSchedule:
        """Return which samples each step takes; a schedule may make them itself, in rounds."""
        return context.default()
