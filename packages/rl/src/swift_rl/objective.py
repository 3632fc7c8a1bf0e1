"""The objective `grpo`: a loss over answers of the model in training, and the plan that makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.objectives.base import BaseObjective
from swift_rl.encoding import PromptEncoding
from swift_rl.options import GrpoOptions

if TYPE_CHECKING:
    from swift.contracts import Plan, PlanContext


class Grpo(BaseObjective[GrpoOptions]):
    """Policy gradients whose baseline is the group of answers to the same prompt."""

    options_model = GrpoOptions
    name = "grpo"
    encoding = PromptEncoding()

    def plan(self, context: PlanContext) -> Plan:
        """Return the plan that lets the model answer prompts, in rounds."""
        from swift_rl.rounds.plan import RolloutPlan

        return RolloutPlan(context, self.options)
