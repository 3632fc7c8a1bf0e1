"""Supervised fine-tuning in which tokens that the model predicts well count less."""

from pydantic import Field, NonNegativeFloat

from swift import LossSums, Section
from swift.objectives.base import BaseObjective


class FocalLossOptions(Section):
    """Options of `focal_loss`; each is a flag."""

    gamma: NonNegativeFloat = Field(2.0, description="Focusing parameter; 0 is ordinary sft")


class FocalLoss(BaseObjective):
    """The mean over target tokens of -(1 - p)^gamma log p."""

    name = "focal_loss"
    options_model = FocalLossOptions

    def row_weight(self, samples):
        return sum(sample.loss_weight for sample in samples)

    def loss(self, view, batch):
        logps = view.token_logps
        losses = -((1 - logps.exp()) ** self.options.gamma) * logps
        surprise = (-logps.detach() * batch.weights).sum()
        return LossSums(
            loss=(losses * batch.weights).sum(),
            metrics={"nll": (surprise, batch.weights.sum())},
        )
