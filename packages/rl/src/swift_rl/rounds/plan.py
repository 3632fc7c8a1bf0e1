"""The plan of online learning: the model in training answers prompts, and steps learn from the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swift.contracts import PlanContext
    from swift.data.batch import Batch
    from swift_rl.options import GrpoOptions


class RolloutPlan:
    """Implements `swift.contracts.Plan`: rounds of answers, each of which serves some steps."""

    steps_per_epoch: int | None = None
    total_steps = 1

    def __init__(self, context: PlanContext, options: GrpoOptions) -> None:
        self._context = context
        self._options = options

    def epoch_at(self, step: int) -> float:
        """Return how many passes over the prompts are complete before this step."""
        return 0.0

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the answers that a step learns from."""
        raise NotImplementedError
