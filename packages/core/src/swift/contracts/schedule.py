"""The contract of batch schedules: which samples each optimizer step takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swift.errors import CheckpointError

if TYPE_CHECKING:
    from swift.data.batch import Batch


SECONDS_GENERATING = "seconds_generating"
"""Metric of a schedule that generates what the run learns from: steps then wait for completions, not for data."""


class BatchSchedule(ABC):
    """Source of training batches. The same on every process but for the slice that `batch` returns.

    A subclass defines `total_steps`, `epoch_at` and `batch`. The other methods are called on every process too; what
    the main process returns counts.

    - `total_steps`: Optimizer steps of the run.
    - `steps_per_epoch`: Of the first epoch; None where it is unknown.
    - `evaluation_metrics`: Names of the numbers by which the schedule evaluates; None evaluates by the loss over the
      validation set. The first one is `train.metric_for_best` where the user names none, and greater is better unless
      it ends in 'loss'. Without names there is nothing to evaluate in this run.
    """

    total_steps: int
    steps_per_epoch: int | None = None
    evaluation_metrics: Sequence[str] | None = None

    @abstractmethod
    def epoch_at(self, step: int) -> float:
        """Return how many passes over the data are complete before this step."""

    @abstractmethod
    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the global batch of a step. Called once per step, in rising order."""

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return what is logged with the metrics of the objective, instead of those of the same name.

        Called after the step that `batch(step, ...)` was for.
        """
        return {}

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Return a number for every name in `evaluation_metrics` after so many steps (0: before the first)."""
        raise NotImplementedError(f"{type(self).__name__} has evaluation_metrics and no method evaluate")

    def train_roles(self, step: int, batch: Batch) -> Mapping[str, float]:
        """Make the steps of other models of the run, and return what is logged with the step.

        Called before the policy's step, with what `batch(step, ...)` returned.
        """
        return {}

    def learning_rate(self, step: int, planned: float) -> float:
        """Return the policy's learning rate at a step, counted from 0."""
        return planned

    def state(self) -> Mapping[str, Any]:
        """Return JSON values for the manifest of a checkpoint, as they are after the last batch.

        Empty for a schedule that knows no more than the number of the next step.
        """
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`; called before the first batch of a resumed run."""
        raise CheckpointError(
            "The checkpoint holds the state of an objective's own schedule, and this run's cannot resume from it.",
            hint="Resume with the objective, and the version of its plugin, that wrote the checkpoint.",
        )

    def close(self) -> None:  # noqa: B027 - most plans have nothing to close
        """Close engines, servers and worker processes. Called once at the end, after errors too."""
