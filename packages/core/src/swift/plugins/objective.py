"""An objective as core and backends call it: errors are attributed to its plugin, and results are checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from swift.contracts import BatchSchedule, LossSums, ModelRole, ModelView, Objective, RoundWork, ScheduleContext
from swift.plugins.blame import blaming, failing
from swift.plugins.check import check_objective
from swift.plugins.checked_schedule import CheckedSchedule
from swift.plugins.entry import PluginEntry
from swift.plugins.load import LoadedPlugin
from swift.plugins.return_values import is_tensor, wrong

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from swift.config.sections import Config, ModelSection
    from swift.data.batch import MicroBatch
    from swift.data.global_segments import GlobalSegments
    from swift.data.samples import SampleFacts
    from swift.data.store import SampleSet

_VIEWS = tuple(field.name for field in fields(ModelView))


def make_objective(
    plugin: LoadedPlugin,
    options: BaseModel,
    tokenizer: Any = None,
    *,
    model: ModelSection | None = None,
    config: Any = None,
) -> Objective:
    """Return the objective of a plugin, made with its options, and for a tokenizer and a model where they are known.

    `config` is the model's configuration, which the objective may refuse.
    """
    with failing(plugin.entry, "its constructor"):
        made = plugin.object(options)
        check_objective(plugin.entry, made)
    for method, known in (("for_model", model), ("for_tokenizer", tokenizer)):
        if known is not None and hasattr(made, method):
            with failing(plugin.entry, method):
                made = getattr(made, method)(known)
                check_objective(plugin.entry, made)
    if config is not None and hasattr(made, "check_config"):
        with failing(plugin.entry, "check_config"):
            made.check_config(config)
    return cast(Objective, CheckedObjective(plugin.entry, made))


def for_training_set(objective: Objective, samples: SampleSet | None, say: Callable[[str], None]) -> Objective:
    """Return an objective that was made for the samples that it learns from; None stands for a stream."""
    assert isinstance(objective, CheckedObjective)
    return objective.for_training_set(samples, say)


def roles_of(objective: Objective, config: Config) -> Sequence[ModelRole]:
    """Return the models that an objective asks for besides the policy."""
    assert isinstance(objective, CheckedObjective)
    return objective.roles(config)


def rounds_of(objective: Objective, config: Config) -> RoundWork:
    """Return what an objective's schedule holds and does besides the steps of models."""
    assert isinstance(objective, CheckedObjective)
    return objective.rounds(config)


class CheckedObjective:
    """An objective of a plugin. Looks at types alone, which costs a step nothing."""

    def __init__(self, entry: PluginEntry, objective: Objective) -> None:
        self._entry = entry
        self._objective = objective
        self.needs = objective.needs
        self.adapters_off = objective.adapters_off
        inner = objective.baseline
        self.baseline = None if inner is None else CheckedObjective(entry, inner)
        first = getattr(objective, "first_pass", None)
        self.first_pass = None if first is None else CheckedObjective(entry, first)

    def for_training_set(self, samples: SampleSet | None, say: Callable[[str], None]) -> Objective:
        """Return the objective for the samples that it learns from."""
        own = getattr(self._objective, "for_training_set", None)
        if own is None:
            return cast(Objective, self)
        with failing(self._entry, "for_training_set"):
            came = own(samples, say)
            check_objective(self._entry, came)
            return cast(Objective, CheckedObjective(self._entry, came))

    def roles(self, config: Config) -> Sequence[ModelRole]:
        """Return the models that the objective asks for besides the policy; mostly none."""
        own = getattr(self._objective, "roles", None)
        if own is None:
            return ()
        with failing(self._entry, "roles"):
            came: Any = own(config)
            if not isinstance(came, Sequence) or not all(isinstance(each, ModelRole) for each in came):
                raise wrong(self._entry, "roles", "a sequence of swift.contracts.ModelRole", came)
            return came

    def rounds(self, config: Config) -> RoundWork:
        """Return what the objective's schedule holds and does besides the steps of models; mostly nothing."""
        own = getattr(self._objective, "rounds", None)
        if own is None:
            return RoundWork()
        with failing(self._entry, "rounds"):
            came: Any = own(config)
            if not isinstance(came, RoundWork):
                raise wrong(self._entry, "rounds", "a swift.contracts.RoundWork", came)
            return came

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """Return how much these samples weigh: a number that can be added up and divided by."""
        with failing(self._entry, "row_weight"):
            came: Any = self._objective.row_weight(samples)
            try:
                fits = math.isfinite(came) and came >= 0
            except (TypeError, ValueError):
                fits = False
            if not fits:
                raise wrong(self._entry, "row_weight", "a number that is not negative", came)
            return cast(float, came)

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sums over one micro-batch, with a gradient where the model has one."""
        with blaming(self._entry, "loss"):
            came = self._objective.loss(view, batch)
            if not isinstance(came, LossSums):
                raise wrong(self._entry, "loss", "a swift.LossSums", came)
            loss: Any = came.loss
            if not is_tensor(loss) or loss.numel() != 1:
                what = f"a tensor of the shape {tuple(loss.shape)}" if is_tensor(loss) else None
                raise wrong(self._entry, "loss", "a LossSums whose loss is a tensor with one value", loss, words=what)
            if came.reported is not None and not (is_tensor(came.reported) and came.reported.numel() == 1):
                raise wrong(self._entry, "loss", "a LossSums whose reported is a tensor with one value", came.reported)
            if not loss.requires_grad and _has_gradient(view):
                raise wrong(
                    self._entry,
                    "loss",
                    "a loss made of the view by differentiable operations",
                    words="a loss without gradient",
                )
            self._check_metrics(came.metrics)
            if came.segments is not None and not is_tensor(came.segments):
                raise wrong(self._entry, "loss", "segments that are a tensor", came.segments)
            self._check_tokens(came.tokens, batch)
            return came

    def with_baseline(self, metrics: Mapping[str, float]) -> Objective:
        """Return the objective with the global metrics of its baseline filled in."""
        with failing(self._entry, "with_baseline"):
            came = self._objective.with_baseline(metrics)
            if came is self._objective:
                return cast(Objective, self)
            if not all(hasattr(came, member) for member in ("loss", "row_weight", "needs")):
                raise wrong(self._entry, "with_baseline", "an objective", came)
            return cast(Objective, CheckedObjective(self._entry, came))

    def from_first_pass(self, vectors: torch.Tensor, samples: GlobalSegments) -> Mapping[str, torch.Tensor]:
        """Return the values of all segments that the objective makes of their vectors."""
        with blaming(self._entry, "from_first_pass"):
            came = self._objective.from_first_pass(vectors, samples)  # type: ignore[attr-defined]  # optional
            if not isinstance(came, Mapping):
                raise wrong(self._entry, "from_first_pass", "a mapping", came)
            for name, values in came.items():
                if not is_tensor(values) or values.shape[:1] != vectors.shape[:1]:
                    what = f"a tensor of the shape {tuple(values.shape)}" if is_tensor(values) else None
                    expected = f"{name!r} as a tensor with {len(vectors)} rows, one per segment"
                    raise wrong(self._entry, "from_first_pass", expected, values, words=what)
            return came

    def schedule(self, context: ScheduleContext) -> BatchSchedule:
        """Return the objective's own schedule, or the default one."""
        own = getattr(self._objective, "plan", None)
        if own is None:
            return context.default()
        with failing(self._entry, "plan"):
            came = own(context)
            return CheckedSchedule(self._entry, came)

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked of the objective is its own."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_objective"], name)

    def _check_tokens(self, tokens: Any, batch: MicroBatch) -> None:
        if not isinstance(tokens, Mapping):
            raise wrong(self._entry, "loss", "tokens that are a mapping", tokens)
        for name, values in tokens.items():
            if not is_tensor(values) or batch.targets.shape not in (values.shape, values.shape[:-1]):
                what = f"a tensor of the shape {tuple(values.shape)}" if is_tensor(values) else None
                shape = tuple(batch.targets.shape)
                raise wrong(
                    self._entry, "loss", f"tokens[{name!r}] with the targets' shape {shape}", values, words=what
                )

    def _check_metrics(self, metrics: Any) -> None:
        if not isinstance(metrics, Mapping):
            raise wrong(self._entry, "loss", "metrics that are a mapping", metrics)
        for name, pair in metrics.items():
            if not isinstance(name, str):
                raise wrong(self._entry, "loss", "metrics whose names are texts", name)
            if not (isinstance(pair, tuple | list) and len(pair) == 2):
                raise wrong(self._entry, "loss", f"a pair (sum, weight) for the metric {name!r}", pair)
            for value in pair:
                if not _is_value(value):
                    raise wrong(self._entry, "loss", f"numbers for the metric {name!r}", value)


def _is_value(value: Any) -> bool:
    return isinstance(value, float | int) or (is_tensor(value) and value.numel() == 1)


def _has_gradient(view: ModelView) -> bool:
    """Return whether a loss made of this view would have a gradient; on any device that is known without waiting."""
    tensors: Iterable[torch.Tensor | None] = (getattr(view, name, None) for name in _VIEWS)
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)
