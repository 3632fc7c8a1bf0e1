"""An objective and its schedule as core and backends call them: errors name the plugin, and results are checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from swift.config.options import RunsCode
from swift.contracts import BatchSchedule, LossSums, ModelView, Objective, ScheduleContext
from swift.errors import PluginError
from swift.plugins.blame import blaming, failing
from swift.plugins.check import check_objective
from swift.plugins.entry import PluginEntry
from swift.plugins.load import LoadedPlugin, find, load
from swift.plugins.python_files import is_imported, is_in_file
from swift.plugins.return_values import Checked, check_attributes, described, is_finite, is_tensor, returned, wrong
from swift.terminal import Say, say_nothing

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from swift.data.batch import Batch, MicroBatch
    from swift.data.global_segments import GlobalSegments

_VIEWS = tuple(field.name for field in fields(ModelView))


def make_objective(plugin: LoadedPlugin, options: BaseModel) -> Objective:
    """Return the objective of a plugin, made with its options."""
    with failing(plugin.entry, "its constructor"):
        made = plugin.object(options)
        check_objective(plugin.entry, made)
    return cast(Objective, CheckedObjective(plugin.entry, made))


def load_objective_of_run(section: Mapping[str, Any], say: Say = say_nothing) -> LoadedPlugin | None:
    """Return the objective that the stored `objective` section of a run names; None where it cannot be used."""
    name = section.get("name")
    if name is None:
        return None
    if is_in_file("swift.objectives", name) and not is_imported(name):  # a checkpoint must not name code to run
        say(f"{name} is not run for an export. Files that the objective adds, such as a chat template, are missing.")
        return None
    try:
        entry = find("swift.objectives", name)
    except PluginError as problem:  # the model was trained elsewhere, and most objectives add nothing
        say(f"{problem.message} Files that it adds to an export, such as a chat template, are missing. {problem.hint}")
        return None
    return load(entry)


def make_objective_of_run(plugin: LoadedPlugin, section: Mapping[str, Any]) -> Objective:
    """Return the objective with its stored options, without those that name code or that it does not know."""
    assert plugin.config_model is not None
    taken = plugin.config_model.model_fields.keys() - RunsCode.fields(plugin.config_model)
    known = {name: value for name, value in section.items() if name in taken}
    with failing(plugin.entry, "its options"):
        options = plugin.config_model.model_validate(known)
    return make_objective(plugin, options)


class CheckedObjective(Checked):
    """An objective of a plugin. Looks at types alone, which costs a step nothing."""

    kept = frozenset({"loss", "from_first_pass"})

    def __init__(self, entry: PluginEntry, objective: Objective) -> None:
        super().__init__(entry, objective, Objective)
        for name in ("baseline", "first_pass"):
            inner = getattr(objective, name)
            setattr(self, name, None if inner is None else CheckedObjective(entry, inner))

    def _call(self, name: str, function: Any, *arguments: Any, **named: Any) -> Any:
        came = super()._call(name, function, *arguments, **named)
        if not isinstance(came, Objective):
            return came
        if came is self._inner:
            return self
        check_objective(self._entry, came)
        return CheckedObjective(self._entry, came)

    def row_weight(self, samples: Any) -> float:
        """Return how much these samples weigh: a number that can be added up and divided by."""
        came = self._call("row_weight", self._inner.row_weight, samples)
        if not is_finite(came) or came < 0:
            raise wrong(self._entry, "row_weight", "a finite number that is not negative", came)
        return cast(float, came)

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sums over one micro-batch, with a gradient where the model has one."""
        came: LossSums = self._call("loss", self._inner.loss, view, batch)
        with blaming(self._entry, "loss"):
            for name, value in _single_values(came):
                if is_tensor(value) and value.numel() != 1:
                    raise self._wrong(f"{name} as one value", value)
            if not came.loss.requires_grad and _has_gradient(view):
                raise self._wrong("a loss made of the view by differentiable operations", "a loss without gradient")
            for name, values in came.tokens.items():
                if batch.targets.shape not in (values.shape, values.shape[:-1]):
                    raise self._wrong(f"tokens[{name!r}] of the targets' shape {tuple(batch.targets.shape)}", values)
            return came

    def from_first_pass(self, vectors: torch.Tensor, samples: GlobalSegments) -> Mapping[str, torch.Tensor]:
        """Return the values of all segments that the objective makes of their vectors."""
        came: Mapping[str, torch.Tensor] = self._call("from_first_pass", self._inner.from_first_pass, vectors, samples)
        for name, values in came.items():
            if values.shape[:1] != vectors.shape[:1]:
                expected = f"{name!r} as a tensor with {len(vectors)} rows, one per segment"
                raise wrong(self._entry, "from_first_pass", expected, values)
        return came

    def batch_schedule(self, context: ScheduleContext) -> BatchSchedule:
        """Return which samples each step takes: the objective's own schedule, or one of core's as it is."""
        from swift.data.schedules import EpochSchedule, StreamingSchedule

        came: BatchSchedule = self._call("batch_schedule", self._inner.batch_schedule, context)
        is_own = not isinstance(came, EpochSchedule | StreamingSchedule)
        return cast(BatchSchedule, CheckedSchedule(self._entry, came)) if is_own else came

    def _wrong(self, expected: str, came: Any) -> Exception:
        return wrong(self._entry, "loss", expected, shown=came if isinstance(came, str) else described(came))


def _single_values(sums: LossSums) -> list[tuple[str, Any]]:
    """Return what has to be one number each, by name."""
    metrics = [(f"the metric {name!r}", value) for name, pair in sums.metrics.items() for value in pair]
    return [("loss", sums.loss), ("reported", sums.reported), *metrics]


def _has_gradient(view: ModelView) -> bool:
    """Return whether a loss made of this view would have a gradient; on any device that is known without waiting."""
    tensors: list[torch.Tensor | None] = [getattr(view, name, None) for name in _VIEWS]
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


class CheckedSchedule(Checked):
    """The schedule of a plugin's objective."""

    kept = frozenset({"batch", "train_roles", "evaluate"})

    def __init__(self, entry: PluginEntry, schedule: BatchSchedule) -> None:
        super().__init__(entry, schedule, BatchSchedule, of=" of its schedule")
        problem = None
        if found := check_attributes(schedule, BatchSchedule):
            problem = found.expected, found.within(schedule)
        elif schedule.total_steps < 1:
            problem = "a number of steps above 0", f"a schedule of {schedule.total_steps} steps"
        elif (schedule.evaluation_metrics is None) != (type(schedule).evaluate is BatchSchedule.evaluate):
            problem = "both or neither", "a schedule with one of evaluate and evaluation_metrics"
        if problem is not None:
            raise wrong(entry, "batch_schedule", problem[0], shown=problem[1])

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the global batch of a step."""
        from swift.data.batch import Batch

        made = self._call("batch", self._inner.batch, step, data_rank, data_size)
        came: Batch = returned(self._entry, "batch of its schedule", made, Batch)
        if not came.rows and came.spare_row is None:
            expected = "a batch with rows, or a spare row"
            raise wrong(self._entry, "batch of its schedule", expected, shown="an empty batch")
        return came

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Return the schedule's own evaluation after so many steps."""
        numbers: Mapping[str, float] = self._call("evaluate", self._inner.evaluate, step)
        missing = [name for name in self._inner.evaluation_metrics or () if name not in numbers]
        if missing and numbers:  # what the main process returns counts: others may leave it out
            expected = "a number for each of its evaluation_metrics"
            raise wrong(self._entry, "evaluate of its schedule", expected, shown=f"no number for {missing[0]!r}")
        return numbers

    def state(self) -> Mapping[str, Any]:
        """Return what the schedule keeps in a checkpoint, as a checkpoint gives it back: JSON has no tuples."""
        came = self._call("state", self._inner.state)
        try:
            return cast("Mapping[str, Any]", json.loads(json.dumps(came, allow_nan=False)))
        except (TypeError, ValueError):
            raise wrong(self._entry, "state of its schedule", "a mapping of JSON values", came) from None
