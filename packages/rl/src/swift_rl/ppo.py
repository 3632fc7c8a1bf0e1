"""The objective `ppo`: a clipped policy loss, with a critic that estimates the value of each token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from swift.contracts import LossSums, ModelRole, ModelView, Need
from swift.objectives.base import PerSampleObjective, PerTokenObjective, viewed
from swift_rl.objective import POLICY_DEFAULTS, PromptEncoding, counted, movement, token_sums
from swift_rl.options import PpoOptions

if TYPE_CHECKING:
    import torch

    from swift.config.sections import Config
    from swift.contracts import BatchSchedule, RoundWork, ScheduleContext
    from swift.data.batch import MicroBatch


CRITIC = "critic"
"""The role of the model that estimates values."""


class ValueLoss(PerTokenObjective[PpoOptions]):
    """The critic's loss: the squared error of its values, clipped around those at the beginning of the round."""

    name = "ppo_values"
    task = "value"
    needs = frozenset({Need.VALUES})

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum over the micro-batch, with the factor `vf_coef`."""
        return value_sums(viewed(view.values, Need.VALUES), batch, self.options)


class TokenValues(PerSampleObjective[PpoOptions]):
    """The critic's value before each learned token; its loss is 0."""

    name = "token_values"
    task = "value"
    needs = frozenset({Need.VALUES})

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the values of tokens, and a loss of 0."""
        values = viewed(view.values, Need.VALUES) * (batch.weights > 0)
        return LossSums(loss=values.sum() * 0.0, tokens={"values": values})


def value_sums(values: torch.Tensor, batch: MicroBatch, options: PpoOptions) -> LossSums:
    """Return the critic's loss over a micro-batch, with the factor `vf_coef`."""
    most = options.cliprange_value
    old, returns = batch.token_values["old_values"], batch.token_values["returns"]
    bounded = values.clamp(old - most, old + most)
    missed, missed_bounded = (values - returns).square(), (bounded - returns).square()
    each = missed.maximum(missed_bounded) / 2
    tokens = (batch.weights > 0).to(each.dtype)
    metrics = {"loss": each.detach(), "clip_ratio": (missed_bounded > missed).to(each.dtype)}
    loss = options.vf_coef * counted(tokens, each).sum()
    return LossSums(loss=loss, metrics=token_sums(tokens, metrics))


def critic_role(config: Config, options: PpoOptions) -> ModelRole:
    """Return the critic: a value model that is trained as the policy is, with a learning rate of its own."""
    model: dict[str, Any] = {
        "task": "value",
        "value_head": False,
        "num_labels": None,
        "labels": (),
        "problem_type": None,
    }
    if options.critic_model is not None:
        model |= {"path": options.critic_model, "revision": None, "random_weights": False}
    tuner = config.tuner.model_copy(update={"adapter": None})
    rate = options.critic_lr or config.optim.lr
    return ModelRole(
        CRITIC,
        config.model.model_copy(update=model),
        tuner=tuner,
        optim=config.optim.model_copy(update={"lr": rate}),
    )


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
