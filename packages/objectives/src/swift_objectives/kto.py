"""Learning from completions that are each marked good or bad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from swift.config.sections import Section
from swift.contracts import LossSums, ModelView, Need
from swift.objectives.base import PerSampleObjective
from swift_objectives.preference import Pairs

if TYPE_CHECKING:
    import torch

    from swift.data.batch import MicroBatch
    from swift_objectives.encodings.kto import KtoEncoding


class KtoOptions(Section):
    """Options of `kto`."""

    beta: PositiveFloat = Field(0.1, description="KL penalty: how strongly the policy is kept near the reference model")
    desirable_weight: NonNegativeFloat = Field(1.0, description="Loss weight of desirable completions")
    undesirable_weight: NonNegativeFloat = Field(1.0, description="Loss weight of undesirable completions")
    reference: Literal["auto", "adapter", "cached"] = Field(
        "auto",
        description="Reference model: the policy without its adapter, or log-probabilities precomputed and cached "
        "on disk",
    )


class KtoBaseline(PerSampleObjective[KtoOptions]):
    """The reference point of KTO: how far the policy has moved on completions that don't belong to their prompts."""

    name = "kto_baseline"
    needs = frozenset({Need.TOKEN_LOGPS, Need.REFERENCE_LOGPS})

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return no loss; the metric `kl` is the estimate, before it is clamped."""
        pairs = Pairs.read(view, batch)
        _, mismatched = pairs.log_ratios()
        kl = (mismatched.detach() * pairs.active).sum()
        return LossSums(loss=kl.new_zeros(()), metrics={"kl": (kl, pairs.active.sum())})


class Kto(PerSampleObjective[KtoOptions]):
    """Kahneman-Tversky optimisation (arXiv 2402.01306), a mean over the samples of the *global* batch.

    The reference point is `max(0, mean log-ratio of the mismatched completions)` over the global batch, without
    gradient: the backend evaluates `baseline` before the step and passes its metrics to `with_baseline`.
    """

    options_model = KtoOptions
    name = "kto"
    command = "rlhf"
    needs = frozenset({Need.TOKEN_LOGPS, Need.REFERENCE_LOGPS})

    def __init__(self, options: KtoOptions, *, kl: float | None = None) -> None:
        super().__init__(options)
        self.baseline = KtoBaseline(options)
        self.kl = kl

    @property
    def encoding(self) -> KtoEncoding:  # type: ignore[override] # the base class has a plain member
        """Return how rows are read; help imports no encoding."""
        from swift_objectives.encodings.kto import KtoEncoding

        return KtoEncoding()

    def with_baseline(self, metrics: Mapping[str, float]) -> Kto:
        """Return this objective with its reference point."""
        return Kto(self.options, kl=max(0.0, metrics["kl"]))

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Return the sum over the micro-batch's samples, dummies left out."""
        if self.kl is None:
            raise ValueError("KTO's loss needs its reference point: evaluate `baseline` and call `with_baseline` first")
        options = self.options
        pairs = Pairs.read(view, batch)
        ratios, active = pairs.log_ratios()[0], pairs.active
        good = batch.values["label"] > 0.5
        gain = options.beta * (ratios - self.kl)
        losses = 1 - (gain * (good.float() * 2 - 1)).sigmoid()
        weights = active * (good.float() * options.desirable_weight + (~good).float() * options.undesirable_weight)

        rewards = options.beta * ratios.detach()
        chosen, rejected = active * good, active * ~good
        metrics: dict[str, tuple[torch.Tensor, torch.Tensor | float]] = {
            "rewards_chosen": ((rewards * chosen).sum(), chosen.sum()),
            "rewards_rejected": ((rewards * rejected).sum(), rejected.sum()),
            "kl": (self.kl * active.sum(), active.sum()),
        }
        return LossSums(loss=(losses * weights).sum(), metrics=metrics)
