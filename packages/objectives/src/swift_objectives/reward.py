"""Learning to score: a reward model gives the chosen answer of a pair a higher score than the rejected one.

The loss is a mean over the pairs of the *global* batch, so how the pairs are divided into micro-batches or among
processes changes nothing. A dummy pair (all weights zero) has no loss, no weight and no metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, NonNegativeFloat

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need
from swift.objectives.base import log_sigmoid, viewed
from swift_objectives.preference import OfPairs, pair_metrics

if TYPE_CHECKING:
    from swift.data.batch import MicroBatch


class RewardModelOptions(Section):
    """Options of `rm`."""

    center_rewards_coefficient: NonNegativeFloat = Field(
        0.0, description="Weight of (chosen + rejected)², which keeps the mean score near zero; 0.01 is usual"
    )


class RewardModel(OfPairs[RewardModelOptions]):
    """Bradley-Terry: -log σ(chosen - rejected - margin), as in Llama 2 (arXiv 2307.09288, section 3.2.2).

    The margin of a pair is its column `margin`, 0 without one. Centering is that of arXiv 2312.09244.
    """

    options_model = RewardModelOptions
    name = "rm"
    command = "rlhf"
    needs = frozenset({Need.SCORES})
    task = "reward"
    num_labels = 1

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum over the micro-batch's pairs, dummies left out."""
        scores = viewed(view.scores, Need.SCORES)[:, 0]
        chosen, rejected = scores[0::2], scores[1::2]  # segments lie in the order chosen, rejected, chosen, ...
        counts = batch.segment_sum(batch.weights)
        active = ((counts[0::2] + counts[1::2]) > 0).float()
        lead = chosen - rejected
        margin = batch.values.get("margin")
        # Of a data set of which some rows have a margin, the others hold NaN.
        losses = -log_sigmoid(lead if margin is None else lead - margin.nan_to_num(0.0))
        centering = self.options.center_rewards_coefficient
        if centering:
            losses = losses + centering * (chosen + rejected) ** 2
        metrics = pair_metrics(chosen, rejected, active)
        return LossSums(loss=(losses * active).sum(), metrics=metrics, segments=scores.detach())
