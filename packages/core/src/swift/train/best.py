"""Which evaluation was the best so far, and whether it is time to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swift.errors import ConfigError, did_you_mean


@dataclass
class BestSoFar:
    """Follows one evaluation metric; its fields are part of every checkpoint."""

    metric: str
    greater_is_better: bool
    patience: int | None
    value: float | None = None
    step: int | None = None
    """The step whose evaluation was the best."""
    evaluations_since: int = 0

    def update(self, step: int, evaluation: Mapping[str, float]) -> bool:
        """Take in an evaluation; True when it is the best one."""
        if self.metric not in evaluation:
            raise ConfigError(
                f"train.metric_for_best is {self.metric!r}, which this evaluation does not have."
                f"{did_you_mean(self.metric, evaluation)}",
                hint=f"It has: {', '.join(evaluation)}.",
            )
        value = evaluation[self.metric]
        better = self.value is None or (value > self.value if self.greater_is_better else value < self.value)
        if better:
            self.value, self.step, self.evaluations_since = value, step, 0
        else:
            self.evaluations_since += 1
        return better

    @property
    def exhausted(self) -> bool:
        """True when `train.early_stopping` evaluations in a row were no better."""
        return self.patience is not None and self.evaluations_since >= self.patience

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"value": self.value, "step": self.step, "evaluations_since": self.evaluations_since}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        self.value, self.step = kept.get("value"), kept.get("step")
        self.evaluations_since = int(kept.get("evaluations_since", 0))
