"""Maximum likelihood: continued pre-training on text, and supervised fine-tuning on conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need
from swift.objectives.base import PerTokenObjective, viewed

if TYPE_CHECKING:
    from swift.data.batch import MicroBatch


class LikelihoodOptions(Section):
    """Options of `pt` and `sft`."""

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="Label smoothing: part of each target's probability spread evenly over the vocabulary"
    )


class Sft(PerTokenObjective[LikelihoodOptions]):
    """The mean negative log-likelihood of the target tokens over the *global* batch, each token by its weight."""

    options_model = LikelihoodOptions
    name = "sft"
    command = "sft"
    encoding = "chat"

    def __init__(self, options: LikelihoodOptions) -> None:
        super().__init__(options)
        self.needs = frozenset({Need.TOKEN_LOGPS, Need.TOKEN_CORRECT})
        if options.label_smoothing > 0:
            self.needs |= {Need.MEAN_LOGPS}

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the weighted sum of negative log-likelihoods, and the token accuracy."""
        logps = viewed(view.token_logps, Need.TOKEN_LOGPS)
        smoothing = self.options.label_smoothing
        if smoothing > 0:
            logps = (1 - smoothing) * logps + smoothing * viewed(view.mean_logps, Need.MEAN_LOGPS)
        sums = LossSums(loss=-(logps * batch.weights).sum())
        if view.token_correct is not None:
            counts = (batch.weights > 0).float()
            sums.metrics["token_acc"] = ((view.token_correct * counts).sum(), counts.sum())
        return sums


class Pretrain(Sft):
    """Train on plain text, where every token is a target."""

    name = "pt"
    command = "pt"
    encoding = "text"
