"""The contract of objectives, and of what a batch schedule of their own may use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from swift.contracts.rounds import RoundWork
from swift.contracts.schedule import BatchSchedule
from swift.contracts.views import LossSums, ModelView, Need

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from swift.config.sections import Config, ModelSection
    from swift.contracts.backend import ForwardResult, StepResult
    from swift.contracts.inference import InferenceEngine
    from swift.contracts.model import ModelSource
    from swift.contracts.role import ModelRole
    from swift.contracts.run import Topology
    from swift.data.batch import Batch, MicroBatch, Row
    from swift.data.encodings import Conversation, Encoding, Sample
    from swift.data.global_segments import GlobalSegments
    from swift.data.pipeline import PreparedData
    from swift.data.samples import SampleFacts
    from swift.data.schedules.layout import BatchLayout
    from swift.data.store import SampleSet

T = TypeVar("T")


class Objective(ABC):
    """Base class of objectives: a pure function from a view of the model and a batch to sums.

    Entry points of the group `swift.objectives` name a subclass with `options_model`; it is made as `cls(options)`,
    where `options` is an instance of its `options_model`. One that needs reference log-probabilities may have an option
    `reference`: 'auto', 'adapter' or 'cached'. A subclass defines `name`, `row_weight` and `loss`; the other members
    have the usual values. `swift.objectives.base` has bases for losses per token and per sample, and
    `swift.objectives.across_rows.AcrossRows` one for losses that compare rows with each other.

    - `defaults`: Key → (value, reason): values of keys in other sections where the user sets none, such as
      `{"tuner.dropout": (0.0, "the reason")}`. The reason ends the line that tells the user. Keys that name a plugin
      have no such defaults.
    - `encoding`: How rows become samples: 'text', 'chat', or an `Encoding` of a plugin.
    - `task`: `model.task` where the user names none. `--task_type` takes the objective's own name too.
    - `command`: The command that trains it, such as 'sft' or 'rlhf': others refuse it, except `train`. With 'train'
      none does.
    - `returns`: What its models return where `task` does not tell: a language model that returns 'scores' is asked for
      them by `question` and `scores`, and a model that returns 'steps' has a value of each step of a completion.
    - `asks`: Columns of a row, each a text, that a language model scores.
    - `num_labels`: How many labels a head must have for the objective.
    - `adapters_off`: True when the model is to be viewed with its adapter switched off (a reference).
    - `candidates`: Tokens whose probabilities `Need.CANDIDATE_LOGPS` gives at every position, for samples that bring no
      candidates of their own.
    - `baseline`: Evaluated without gradient over the global batch before the step; see `with_baseline`.
    - `first_pass`: For losses that compare the rows of the global batch with each other. Evaluated without gradient
      over the global batch before the step, with the dropout of the step; returns one vector per segment as
      `LossSums.segments`. Where one micro-batch is the whole global batch there is no first pass:
      `MicroBatch.segment_values` is empty, and `loss` computes the same from the view.
    """

    options_model: ClassVar[type[BaseModel]]
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = {}
    name: str
    needs: frozenset[Need] = frozenset({Need.TOKEN_LOGPS})
    encoding: str | Encoding = "chat"
    task: str = "causal_lm"
    command: ClassVar[str] = "train"
    returns: ClassVar[Literal["scores", "steps"] | None] = None
    asks: ClassVar[tuple[str, ...]] = ("text",)
    num_labels: int | None = None
    adapters_off: bool = False
    candidates: tuple[int, ...] = ()
    baseline: Objective | None = None
    first_pass: Objective | None = None

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

    def question(self, *columns: Conversation) -> Sample:
        """Return what `encoding` makes one segment of, for the `asks` of a row without a target."""
        raise NotImplementedError(f"{type(self).__name__} returns {self.returns} and has no question")

    def scores(self, view: ModelView, batch: MicroBatch) -> torch.Tensor:
        """Return the score that a language model gives each segment, [segments]."""
        raise NotImplementedError(f"{type(self).__name__} returns {self.returns} and has no scores")

    def served_scores(self, tokenizer: Any, system: str | None) -> ServedScores | None:
        """Return how a server gets the same scores from a language model; None where it cannot.

        `system` is the system message of the run.
        """
        return None

    def finish_export(self, context: ExportContext) -> None:  # noqa: B027 - most models need no more files
        """Add to an export what programs that load the model must know of its inputs: a chat template, prompts.

        Called on the main process for every export of a model that the objective trained, once the exporter has
        written its files and before they are verified. The weights must stay as they are.
        """


@dataclass(frozen=True)
class ServedScores:
    """A score that is the difference of two logits after a prompt, which servers compute.

    - `template`: A chat template of the columns of `Objective.asks`, which servers pass as messages (query and
      document).
    - `tokens`: The tokens of the vocabulary, as strings, whose logits make the score: the first minus the second.
    """

    template: str
    tokens: tuple[str, str]


@dataclass(frozen=True)
class ExportContext:
    """Context of `Objective.finish_export`. A field is added now and then: take what you need by name.

    - `folder`: The export. It is renamed once it is complete and verified.
    - `system`: The system message of prompts that have none: `data.system` of the run.
    """

    folder: Path
    system: str | None = None

    @property
    def has_model(self) -> bool:
        """Whether the folder has a model with its tokenizer; False for an adapter, which has neither."""
        return (self.folder / "config.json").is_file()


class Communication(Protocol):
    """How the processes of a run exchange small objects. Every method is called on all of them."""

    rank: int
    size: int

    def broadcast(self, value: T) -> T:
        """Return the main process's value."""

    def gather(self, value: T) -> list[T]:
        """Return everybody's value, by rank."""

    def barrier(self) -> None:
        """Wait until every process is here."""


@dataclass(frozen=True)
class ScheduleContext:
    """Context of `Objective.batch_schedule`, which is called once, before there is a model; batches come later.

    A field is added now and then: take what you need by name.

    - `config`: As it was settled: `train.global_batch` is a number.
    - `folder`: The run's own, where rounds may be kept.
    - `layout`: What the configuration says about batches.
    - `source`: The model as it is before training.
    - `model`: Its folder, as inference engines open it (`swift_infer.open_engine`). Whether Python code in it may run
      is `config.model.trust_remote_code`.
    - `data`: The data sets as they were read: `data.train.corpus.row(...)` has the columns of a row.
    - `samples`: The encoded samples to train on; None for a stream (`data.stream`).
    - `validation`: The encoded samples to evaluate on; None without a validation set.
    - `say`: Print a line for the user, on one process only.
    - `default`: Make the schedule of an objective that has none: epoch after epoch, or the stream.
    - `batch`: `batch(step, rows, data_rank, data_size)`: make one process's slice of a global batch of rows in memory.
    - `forward`: Evaluate another objective with the model in training, on every process; from the first batch on.
    - `send_weights`: Update an inference engine to the weights in training. Called on every process, each with an
      engine of its own or None; from the first batch on.
    - `roles`: Names of the models of the run besides the policy: those of `Objective.roles` that its backend holds.
    - `role`: Return one of them; from the first batch on.
    - `adapter`: Return the PEFT configuration of the LoRA in training, from the first batch on. None where anything
      else is trained, or where it is trained on low-bit weights, which engines do not have.
    """

    config: Config
    folder: Path
    topology: Topology
    layout: BatchLayout
    objective: Objective
    source: ModelSource
    model: Path
    tokenizer: Any
    data: PreparedData
    samples: SampleSet | None
    validation: SampleSet | None
    comms: Communication
    say: Callable[[str], None]
    default: Callable[[], BatchSchedule]
    batch: Callable[[int, Sequence[Row], int, int], Batch]
    forward: Callable[[Batch, Objective], ForwardResult]
    send_weights: Callable[[InferenceEngine | None], None]
    roles: frozenset[str]
    role: Callable[[str], OpenRole]
    adapter: Callable[[], Mapping[str, Any] | None]


class OpenRole(Protocol):
    """A model of a run besides the policy, as plans have it. Every method is called on all processes."""

    @property
    def name(self) -> str:
        """The role's name."""

    def forward(self, batch: Batch, objective: Objective) -> ForwardResult:
        """Evaluate an objective with the role's weights as they are now."""

    def train_step(self, batch: Batch, objective: Objective) -> StepResult:
        """Make one optimizer step of the role over one global batch."""

    def follow(self, part: float) -> None:
        """Move a role that `follows`: its weights become `part` of the policy's and the rest of their own."""
