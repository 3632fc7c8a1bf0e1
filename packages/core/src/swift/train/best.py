"""Which evaluation was the best so far, which checkpoint is, and whether it is time to stop."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swift.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from swift.config.sections import Config, TrainSection


def settle_best(config: Config, names: Sequence[str] | None) -> Config:
    """Return the configuration with the first of a schedule's own evaluation metrics where the user names none."""
    if not names or "metric_for_best" in config.train.model_fields_set:
        return config
    return config.changed(train={"metric_for_best": names[0]})


@dataclass
class BestSoFar:
    """Follows one evaluation metric; its values and steps are part of every checkpoint."""

    metric: str
    greater_is_better: bool
    patience: int | None
    value: float | None = None
    step: int | None = None
    """The step whose evaluation was the best."""
    evaluations_since: int = 0
    saved_value: float | None = None
    saved_step: int | None = None
    """The best among the steps that were both evaluated and saved."""

    @classmethod
    def from_config(cls, train: TrainSection) -> BestSoFar:
        """Read `train.metric_for_best` and related keys; `eval_loss`, as in the log, is `loss`."""
        metric = train.metric_for_best.removeprefix("eval_")
        greater = train.greater_is_better
        return cls(metric, not metric.endswith("loss") if greater is None else greater, train.early_stopping)

    def check(self, names: Collection[str]) -> None:
        """Refuse a metric that is not among those of an evaluation."""
        if self.metric not in names:
            raise ConfigError(
                f"train.metric_for_best is {self.metric!r}, which evaluations of this run do not have."
                f"{did_you_mean(self.metric, names)}",
                hint=f"They have: {', '.join(sorted(names))}.",
            )

    def update(self, step: int, evaluation: Mapping[str, float]) -> None:
        """Take in an evaluation."""
        self.check(evaluation)
        value = evaluation[self.metric]
        if self._better(value, self.value):
            self.value, self.step, self.evaluations_since = value, step, 0
        else:
            self.evaluations_since += 1

    def saved(self, step: int, evaluation: Mapping[str, float] | None) -> None:
        """Take in that a step was saved, with its evaluation where it has one."""
        if evaluation is not None and self._better(evaluation[self.metric], self.saved_value):
            self.saved_value, self.saved_step = evaluation[self.metric], step

    def _better(self, value: float, than: float | None) -> bool:
        if not math.isfinite(value):
            return False
        return than is None or (value > than if self.greater_is_better else value < than)

    @property
    def exhausted(self) -> bool:
        """True when `train.early_stopping` evaluations in a row were no better."""
        return self.patience is not None and self.evaluations_since >= self.patience

    def __str__(self) -> str:
        """'loss 1.25 of step 40'."""
        return f"{self.metric} {'nan' if self.value is None else f'{self.value:.6g} of step {self.step}'}"

    def to_json(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores."""
        return {name: getattr(self, name) for name in _KEPT}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        for name in _KEPT:
            setattr(self, name, kept.get(name, getattr(self, name)))


_KEPT = ("value", "step", "evaluations_since", "saved_value", "saved_step")
