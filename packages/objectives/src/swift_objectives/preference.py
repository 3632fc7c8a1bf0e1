"""Learning from pairs: a completion that was chosen, and one that was rejected after the same prompt.

Every objective here is a mean over the pairs of the *global* batch, so how the pairs are cut into micro-batches or
divided among processes changes nothing. A dummy pair (all weights zero) has no loss, no weight and no metrics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need
from swift.objectives.base import Options, PerSampleObjective, log_sigmoid, segment_logps

if TYPE_CHECKING:
    import torch

    from swift.data.batch import MicroBatch
    from swift_objectives.encodings.preference import PreferenceEncoding

Smoothing = Annotated[float, Field(ge=0.0, lt=0.5)]


@dataclass
class Pairs:
    """Log-probabilities of the pairs of a micro-batch; every tensor has one value per pair."""

    chosen: torch.Tensor
    """Summed log-probability of the chosen completion."""
    rejected: torch.Tensor
    chosen_tokens: torch.Tensor
    """How many tokens the sum is over, at least 1."""
    rejected_tokens: torch.Tensor
    active: torch.Tensor
    """1.0, or 0.0 for a dummy pair."""
    reference: tuple[torch.Tensor, torch.Tensor] | None
    """The reference model's sums of chosen and rejected."""

    @classmethod
    def read(cls, view: ModelView, batch: MicroBatch) -> Pairs:
        """Segments lie in the order chosen, rejected, chosen, rejected, ..."""
        logps, counts = segment_logps(view, batch)
        active = ((counts[0::2] + counts[1::2]) > 0).float()
        tokens = counts.clamp(min=1)
        known = batch.reference_logps
        reference = None if known is None else (known[0::2], known[1::2])
        return cls(logps[0::2], logps[1::2], tokens[0::2], tokens[1::2], active, reference)

    @property
    def chosen_mean(self) -> torch.Tensor:
        """Mean log-probability per token of the chosen completion."""
        return self.chosen / self.chosen_tokens

    @property
    def rejected_mean(self) -> torch.Tensor:
        """Mean log-probability per token of the rejected completion."""
        return self.rejected / self.rejected_tokens

    def log_ratios(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log π/π_reference of chosen and rejected."""
        if self.reference is None:
            raise ValueError(f"the batch has no {Need.REFERENCE_LOGPS.value}, which the objective needs")
        return self.chosen - self.reference[0], self.rejected - self.reference[1]


@dataclass
class Judged:
    """An objective's verdict: the loss of each pair, the implied rewards, and further values to report."""

    losses: torch.Tensor
    chosen_rewards: torch.Tensor
    rejected_rewards: torch.Tensor
    extra: dict[str, torch.Tensor] = field(default_factory=dict)


class OfPairs(PerSampleObjective[Options]):
    """An objective that reads pairs."""

    command = "rlhf"

    @property
    def encoding(self) -> PreferenceEncoding:  # type: ignore[override] # the base class has a plain member
        """Return how rows are read; help imports no encoding."""
        from swift_objectives.encodings.preference import PreferenceEncoding

        return PreferenceEncoding()


def pair_metrics(
    chosen: torch.Tensor, rejected: torch.Tensor, active: torch.Tensor, **further: torch.Tensor
) -> dict[str, tuple[torch.Tensor, torch.Tensor | float]]:
    """Return metrics of the rewards of pairs, and further values to report."""
    values = {
        "rewards_chosen": chosen,
        "rewards_rejected": rejected,
        "reward_margin": chosen - rejected,
        "reward_accuracy": (chosen > rejected).float(),
        **further,
    }
    return {name: ((value.detach() * active).sum(), active.sum()) for name, value in values.items()}


class PairObjective(OfPairs[Options]):
    """A mean over pairs; a subclass judges them."""

    def judge(self, pairs: Pairs) -> Judged:
        """Return the loss of each pair."""
        raise TypeError(f"{type(self).__name__} must define judge(pairs)")

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum over the micro-batch's pairs, dummies left out."""
        pairs = Pairs.read(view, batch)
        judged = self.judge(pairs)
        further = {"logps_chosen": pairs.chosen, "logps_rejected": pairs.rejected, **judged.extra}
        metrics = pair_metrics(judged.chosen_rewards, judged.rejected_rewards, pairs.active, **further)
        return LossSums(loss=(judged.losses * pairs.active).sum(), metrics=metrics)


def pair_loss(margin: torch.Tensor, kind: str, smoothing: float) -> torch.Tensor:
    """Return the loss of a scaled margin: -log σ with labels flipped at the rate `smoothing`, or the hinge."""
    if kind == "hinge":
        return (1 - margin).clamp(min=0)
    if smoothing == 0:
        return -log_sigmoid(margin)
    return -(1 - smoothing) * log_sigmoid(margin) - smoothing * log_sigmoid(-margin)


class _SmoothedOptions(Section):
    loss: str
    label_smoothing: Smoothing = Field(0.0, description="Assumed rate of swapped labels (loss sigmoid only)")

    @model_validator(mode="after")
    def _only_sigmoid_is_smoothed(self) -> _SmoothedOptions:
        if self.label_smoothing > 0 and self.loss != "sigmoid":
            raise ValueError(f"label_smoothing needs loss sigmoid, not {self.loss}")
        return self


class DpoOptions(_SmoothedOptions):
    """Options of `dpo`."""

    beta: PositiveFloat = Field(
        0.1, description="KL penalty: how strongly the policy is kept near the reference model (IPO: tau)"
    )
    loss: Literal["sigmoid", "hinge", "ipo"] = Field("sigmoid", description="Loss function of a pair")
    reference: Literal["auto", "adapter", "cached"] = Field(
        "auto",
        description="Reference model: the policy without its adapter, or log-probabilities precomputed and cached "
        "on disk",
    )


class Dpo(PairObjective[DpoOptions]):
    """Direct preference optimisation (arXiv 2305.18290), with the hinge of SLiC (2305.10425) and IPO (2310.12036).

    `label_smoothing` is conservative DPO. IPO compares log-ratios per token, as its authors and TRL do.
    """

    options_model = DpoOptions
    name = "dpo"
    needs = frozenset({Need.TOKEN_LOGPS, Need.REFERENCE_LOGPS})

    def judge(self, pairs: Pairs) -> Judged:
        """Return the loss of each pair."""
        options = self.options
        chosen, rejected = pairs.log_ratios()
        if options.loss == "ipo":
            lead = chosen / pairs.chosen_tokens - rejected / pairs.rejected_tokens
            losses = (lead - 1 / (2 * options.beta)) ** 2
        else:
            losses = pair_loss(options.beta * (chosen - rejected), options.loss, options.label_smoothing)
        return Judged(losses, options.beta * chosen, options.beta * rejected)


class CpoOptions(_SmoothedOptions):
    """Options of `cpo`."""

    beta: PositiveFloat = Field(0.1, description="Scale of the log-probability margin")
    alpha: NonNegativeFloat = Field(1.0, description="Weight of the chosen completion's likelihood")
    loss: Literal["sigmoid", "hinge"] = Field("sigmoid", description="Loss function of a pair")


class Cpo(PairObjective[CpoOptions]):
    """Contrastive preference optimisation (arXiv 2401.08417): no reference model, and the chosen one's likelihood.

    The likelihood is the mean over the tokens of each chosen completion, then over pairs. TRL takes the mean over
    all chosen tokens of a micro-batch, which changes with the way a batch is cut; the two are equal where the chosen
    completions are equally long.
    """

    options_model = CpoOptions
    name = "cpo"

    def judge(self, pairs: Pairs) -> Judged:
        """Return the loss of each pair."""
        options = self.options
        margin = options.beta * (pairs.chosen - pairs.rejected)
        nll = -pairs.chosen_mean
        losses = pair_loss(margin, options.loss, options.label_smoothing) + options.alpha * nll
        return Judged(losses, options.beta * pairs.chosen, options.beta * pairs.rejected, {"nll_loss": nll})


class SimPoOptions(Section):
    """Options of `simpo`. Defaults as in ms-swift (TRL: beta 0.1, gamma 0.5)."""

    beta: PositiveFloat = Field(2.0, description="Scale of the rewards, which are log-probabilities per token")
    gamma: NonNegativeFloat = Field(1.0, description="Target margin between the chosen and the rejected reward")
    alpha: NonNegativeFloat = Field(0.0, description="Weight of the chosen completion's likelihood (CPO-SimPO)")


class SimPo(PairObjective[SimPoOptions]):
    """Simple preference optimisation (arXiv 2405.14734): rewards per token, and a target margin."""

    options_model = SimPoOptions
    name = "simpo"

    def judge(self, pairs: Pairs) -> Judged:
        """Return the loss of each pair."""
        options = self.options
        chosen, rejected = options.beta * pairs.chosen_mean, options.beta * pairs.rejected_mean
        nll = -pairs.chosen_mean
        losses = -log_sigmoid(chosen - rejected - options.gamma) + options.alpha * nll
        return Judged(losses, chosen, rejected, {"nll_loss": nll})


class OrpoOptions(Section):
    """Options of `orpo`."""

    beta: NonNegativeFloat = Field(0.1, description="Weight of the odds-ratio loss (lambda in the paper)")


class Orpo(PairObjective[OrpoOptions]):
    """Odds ratio preference optimisation (arXiv 2403.07691): likelihood of the chosen, plus the log odds ratio.

    Both terms follow the paper: the likelihood of a completion given its prompt is a mean over its tokens. TRL's
    likelihood term differs in two ways: it takes in the prompt's tokens, and is one mean over all tokens of a
    micro-batch, which changes with the way a batch is cut.
    """

    options_model = OrpoOptions
    name = "orpo"

    def judge(self, pairs: Pairs) -> Judged:
        """Return the loss of each pair."""
        beta = self.options.beta
        log_odds = _log_odds(pairs.chosen_mean) - _log_odds(pairs.rejected_mean)
        log_ratio = log_sigmoid(log_odds)
        nll = -pairs.chosen_mean
        extra = {"nll_loss": nll, "log_odds_ratio": log_ratio}
        return Judged(nll - beta * log_ratio, beta * pairs.chosen_mean, beta * pairs.rejected_mean, extra)


def _log_odds(logp: torch.Tensor) -> torch.Tensor:
    """Return log p/(1-p) from log p. Certainty (p = 1) is taken as the nearest probability below it, to stay finite."""
    import torch

    logp = logp.clamp(max=-torch.finfo(torch.float32).eps)
    small = logp < -math.log(2)  # each formula for log(1-p) is exact where the other one cancels
    log_rest = torch.where(small, torch.log1p(-logp.exp()), (-torch.expm1(logp)).log())
    return logp - log_rest
