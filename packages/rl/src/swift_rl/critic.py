"""The critic of `ppo`: its role, its loss, and its values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swift.contracts import LossSums, ModelRole, ModelView, Need
from swift.objectives.base import PerSampleObjective, PerTokenObjective, viewed
from swift_rl.objective import counted, token_sums
from swift_rl.options import PpoOptions

if TYPE_CHECKING:
    import torch

    from swift.config.sections import Config
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
