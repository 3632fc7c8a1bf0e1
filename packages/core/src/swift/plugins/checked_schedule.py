"""A batch schedule as core calls it: what it raises is blamed on the plugin, and what it returns is looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from swift.contracts import BatchSchedule
from swift.plugins.blame import blaming, failing
from swift.plugins.entry import PluginEntry
from swift.plugins.return_values import wrong

if TYPE_CHECKING:
    from swift.data.batch import Batch


class CheckedSchedule:
    """The schedule of a plugin's objective."""

    def __init__(self, entry: PluginEntry, schedule: BatchSchedule) -> None:
        self._entry = entry
        self._plan = schedule
        steps: object = getattr(schedule, "total_steps", None)
        if not _is_positive(steps):
            raise wrong(entry, "plan", "a schedule whose total_steps is a whole number above 0", steps)
        per_epoch: object = getattr(schedule, "steps_per_epoch", None)
        if per_epoch is not None and not _is_positive(per_epoch):
            raise wrong(entry, "plan", "a schedule whose steps_per_epoch is a whole number above 0, or None", per_epoch)
        for method in ("epoch_at", "batch"):
            if not callable(getattr(schedule, method, None)):
                raise wrong(entry, "plan", f"a schedule with a method {method}", schedule)
        self.evaluation_metrics = self._names()
        self.total_steps: int = schedule.total_steps
        self.steps_per_epoch = cast("int | None", per_epoch)

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the data are complete before this step."""
        with failing(self._entry, "epoch_at of its plan"):
            came: Any = self._plan.epoch_at(step)
            if not isinstance(came, int | float) or not math.isfinite(came):
                raise wrong(self._entry, "epoch_at of its plan", "a finite number", came)
            return float(came)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the global batch of a step."""
        from swift.data.batch import Batch

        with blaming(self._entry, "batch of its plan"):
            came: Any = self._plan.batch(step, data_rank, data_size)
            if not isinstance(came, Batch):
                raise wrong(self._entry, "batch of its plan", "a swift.data.batch.Batch", came)
            if not came.rows and came.spare_row is None:
                raise wrong(
                    self._entry, "batch of its plan", "a batch with rows, or a spare row", words="an empty batch"
                )
            return came

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return what the schedule has to say of a step, counted from 0."""
        own = getattr(self._plan, "metrics", None)
        if own is None:
            return {}
        with failing(self._entry, "metrics of its plan"):
            came: Any = own(step)
            return self._numbers("metrics of its plan", came)

    def train_roles(self, step: int, batch: Batch) -> Mapping[str, float]:
        """Let the schedule make the steps of other models than the policy."""
        own = getattr(self._plan, "train_roles", None)
        if own is None:
            return {}
        with blaming(self._entry, "train_roles of its plan"):
            came: Any = own(step, batch)
            return self._numbers("train_roles of its plan", came)

    def learning_rate(self, step: int, planned: float) -> float:
        """Return the policy's learning rate at a step."""
        own = getattr(self._plan, "learning_rate", None)
        if own is None:
            return planned
        with failing(self._entry, "learning_rate of its plan"):
            came: Any = own(step, planned)
            return self._numbers("learning_rate of its plan", {"learning_rate": came})["learning_rate"]

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Return the schedule's own evaluation after so many steps."""
        with blaming(self._entry, "evaluate of its plan"):
            came: Any = self._plan.evaluate(step)  # type: ignore[attr-defined]  # optional
            numbers = self._numbers("evaluate of its plan", came)
            missing = [name for name in self.evaluation_metrics or () if name not in numbers]
            if missing and numbers:  # what the main process returns counts: others may leave it out
                expected = "a number for each of its evaluation_metrics"
                raise wrong(self._entry, "evaluate of its plan", expected, words=f"no number for {missing[0]!r}")
            return numbers

    def close(self) -> None:
        """Let the schedule give back what it holds."""
        own = getattr(self._plan, "close", None)
        if own is not None:
            with failing(self._entry, "close of its plan"):
                own()

    def state(self) -> Mapping[str, Any]:
        """Return what the schedule keeps in a checkpoint; nothing where it knows no more than the number of the step."""
        own = getattr(self._plan, "state", None)
        if own is None:
            return {}
        with failing(self._entry, "state of its plan"):
            came = own()
            try:
                # As a checkpoint gives it back: JSON has no tuples, and its keys are texts.
                kept = json.loads(json.dumps(came, allow_nan=False))
            except (TypeError, ValueError):
                kept = None
            if not isinstance(kept, dict):
                raise wrong(self._entry, "state of its plan", "a mapping of JSON values", came)
            return kept

    def restore(self, state: Mapping[str, Any]) -> None:
        """Let the schedule take up where `state` was asked for."""
        own = getattr(self._plan, "restore", None)
        if own is None:
            raise wrong(self._entry, "state of its plan", "no state, since it has no method restore", state)
        with failing(self._entry, "restore of its plan"):
            own(state)

    def _names(self) -> tuple[str, ...] | None:
        """Return the names of the numbers by which the schedule evaluates; None where it does not evaluate."""
        names: Any = getattr(self._plan, "evaluation_metrics", None)
        if callable(getattr(self._plan, "evaluate", None)) != (names is not None):
            raise wrong(
                self._entry,
                "plan",
                "a schedule with both evaluate and evaluation_metrics, or neither",
                words="a schedule with one of evaluate and evaluation_metrics",
            )
        if names is None:
            return None
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(e, str) for e in names):
            raise wrong(self._entry, "plan", "a schedule whose evaluation_metrics are names", names)
        return tuple(names)

    def _numbers(self, function: str, came: Any) -> dict[str, float]:
        if not isinstance(came, Mapping):
            raise wrong(self._entry, function, "a mapping of names to numbers", came)
        for name, value in came.items():
            if not isinstance(name, str):
                raise wrong(self._entry, function, "a mapping whose names are texts", name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise wrong(self._entry, function, f"a number for {name!r}", value)
        return {name: float(value) for name, value in came.items()}


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
