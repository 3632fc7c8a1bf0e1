"""The objective `ppo`: a clipped policy loss, with a critic that estimates the value of each token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from swift.contracts import LossSums, ModelRole, ModelView, Need
from swift.objectives.base import PerTokenObjective, viewed
from swift_rl.critic import CRITIC, critic_role, value_sums
from swift_rl.objective import POLICY_DEFAULTS, PromptEncoding, counted, movement, token_sums
from swift_rl.options import PpoOptions

if TYPE_CHECKING:
    from swift.config.sections import Config
    from swift.contracts import BatchSchedule, RoundWork, ScheduleContext
    from swift.data.batch import MicroBatch


class Ppo(PerTokenObjective[PpoOptions]):
    """Policy gradients whose baseline is a critic (arXiv 1707.06347): a model of its own, or a head on the policy's.

    The schedule gives each token `advantages` and `old_logps`, if needed `is_weights` (what corrects for the
    engine), and for the critic `returns` and `old_values`. A token is learned from where its weight is 1.
    """

    options_model = PpoOptions
    name = "ppo"
    command = "rlhf"
    encoding = PromptEncoding()
    defaults: ClassVar[Mapping[str, tuple[Any, str]]] = POLICY_DEFAULTS

    def __init__(self, options: PpoOptions) -> None:
        super().__init__(options)
        self.needs = frozenset({Need.TOKEN_LOGPS, *([Need.VALUES] if options.critic == "shared" else ())})

    def roles(self, config: Config) -> list[ModelRole]:
        """Return the critic and the reference, if they are models of their own."""
        from swift_rl.roles import reference_roles

        critic = [] if self.options.critic == "shared" else [critic_role(config, self.options)]
        return [*critic, *reference_roles(config, self.options)]

    def rounds(self, config: Config) -> RoundWork:
        """Return the work of rounds besides the steps of policy and critic."""
        from swift_rl.roles import work_of_rounds

        critic = () if self.options.critic == "shared" else (CRITIC,)
        return work_of_rounds(config, self.options, scores=True, roles=critic)

    def batch_schedule(self, context: ScheduleContext) -> BatchSchedule:
        """Return the schedule of rounds of sampled completions."""
        from swift_rl.rounds.critic_rounds import CriticRounds

        return CriticRounds(context, self.options)

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum over the micro-batch of the policy's loss, and metrics of how far the policy has moved."""
        from swift_rl import losses

        values, most = batch.token_values, self.options.cliprange
        counts = batch.weights > 0
        logps = viewed(view.token_logps, Need.TOKEN_LOGPS)
        log_ratio = (logps - values["old_logps"]).masked_fill(~counts, 0.0)
        policy = losses.clipped(log_ratio.exp(), values["advantages"], lowest=1 - most, highest=1 + most)
        each = policy.loss * values["is_weights"] if "is_weights" in values else policy.loss
        tokens = counts.to(each.dtype)
        metrics = token_sums(tokens, movement(policy, log_ratio.detach()))
        sums = LossSums(loss=counted(tokens, each).sum(), metrics=metrics)
        if self.options.critic == "separate":
            return sums
        critic = value_sums(viewed(view.values, Need.VALUES), batch, self.options)
        sums.metrics |= {f"critic/{name}": value for name, value in critic.metrics.items()}
        return replace(sums, loss=sums.loss + critic.loss)
