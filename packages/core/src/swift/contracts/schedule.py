"""The contract of schedules: which samples each optimizer step takes, and what a schedule of a plugin's own may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.contracts.backend import ForwardResult
    from swift.contracts.inference import InferenceEngine
    from swift.contracts.model import ModelSource
    from swift.contracts.objective import Objective
    from swift.contracts.role import OpenRole
    from swift.contracts.run import Topology
    from swift.data.batch import Batch, Row
    from swift.data.pipeline import PreparedData
    from swift.data.schedules.layout import BatchLayout
    from swift.data.store import SampleSet

T = TypeVar("T")


class BatchSchedule(Protocol):
    """Source of training batches. The same on every process but for the slice that `batch` returns.

    A schedule may have these members too, each called on every process; what the main process returns counts.

    - `metrics(step) -> Mapping[str, float]` is called after the step that `batch(step, ...)` was for. What it returns
      is logged with the metrics of the objective; a metric of the same name replaces the objective's.
    - `evaluation_metrics: Sequence[str]` and `evaluate(step) -> Mapping[str, float]` replace the loss over the
      validation set as the evaluation after `step` steps (0: before the first). `evaluate` returns a number for every
      name. The first name is `train.metric_for_best` where the user names none, and greater is better unless it ends
      in 'loss'. Without names there is nothing to evaluate in this run.
    - `train_roles(step, batch) -> Mapping[str, float]` is called before the policy's step, with what `batch(step, ...)`
      returned, and makes the steps of other models of the run. What it returns is logged with the step.
    - `learning_rate(step, planned: float) -> float` replaces the policy's learning rate at a step, counted from 0.
    - `close()` is called once at the end, after errors too: engines, servers and worker processes are given back.
    """

    total_steps: int
    """Optimizer steps of the run."""
    steps_per_epoch: int | None
    """Of the first epoch; None where nobody knows."""

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the data are complete before this step."""

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the global batch of a step. Called once per step, in rising order."""


@runtime_checkable
class ResumableSchedule(BatchSchedule, Protocol):
    """A schedule that knows more than the number of the next step."""

    def state(self) -> Mapping[str, Any]:
        """Return JSON values for the manifest of a checkpoint, as they are after the last batch."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was asked for; called before the first batch of a resumed run."""


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
    """Context of `Objective.batch_schedule`, which is called once, before there is a model; batches are asked for later.

    A field is added now and then: take what you need by name.
    """

    config: Config
    """As it was settled: `train.global_batch` is a number."""
    folder: Path
    """The run's own, where rounds may be kept."""
    topology: Topology
    layout: BatchLayout
    """What the configuration says about batches."""
    objective: Objective
    source: ModelSource
    """The model as it is before training."""
    model: Path
    """Its folder, as inference engines open it (`swift.infer.open_engine`). Whether Python code in it may run is
    `config.model.trust_remote_code`."""
    tokenizer: Any
    data: PreparedData
    """The data sets as they were read: `data.train.corpus.row(...)` has the columns of a row."""
    samples: SampleSet | None
    """The encoded samples to train on; None for a stream (`data.stream`)."""
    validation: SampleSet | None
    """The encoded samples to evaluate on; None without a validation set."""
    comms: Communication
    say: Callable[[str], None]
    """Print a line for the user, on one process only."""
    default: Callable[[], BatchSchedule]
    """Make the schedule of an objective that has none: epoch after epoch, or the stream."""
    batch: Callable[[int, Sequence[Row], int, int], Batch]
    """`batch(step, rows, data_rank, data_size)`: make one process's slice of a global batch of rows in memory."""
    forward: Callable[[Batch, Objective], ForwardResult]
    """Evaluate another objective with the model in training, on every process; from the first batch on."""
    send_weights: Callable[[InferenceEngine | None], None]
    """Update an inference engine to the weights in training. Called on every process, each with an engine of its own
    or None; from the first batch on."""
    roles: frozenset[str]
    """Names of the models of the run besides the policy: those of `Objective.roles` that its backend holds."""
    role: Callable[[str], OpenRole]
    """Return one of them; from the first batch on."""
    adapter: Callable[[], Mapping[str, Any] | None]
    """Return the PEFT configuration of the LoRA in training, from the first batch on.

    None where anything else is trained, or where it is trained on weights of few bits, which engines do not have."""
