"""Options of the estimators and losses, under the names that TRL and ms-swift gave them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from swift.config.sections import Section
from swift_rl.presets import Library, with_preset

KlEstimator = Literal["k1", "k2", "k3"]
CorrectionMode = Literal["auto", "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


class KlOptions(Section):
    """How the KL divergence of a token from the reference is estimated, and which model that is."""

    _kl_strength: ClassVar[str] = "beta"
    """The option that multiplies the divergence."""

    kl_estimator: KlEstimator | None = Field(
        None, description="Estimator of the KL divergence of a token; default: k3 in the loss, k1 in the reward"
    )
    kl_log_ratio_clamp: PositiveFloat | None = Field(None, description="Clamp the log-ratio of the KL term to ± this")
    kl_clamp: PositiveFloat | None = Field(None, description="Clamp the KL term of a token to ± this")

    sync_ref_model: bool = Field(
        False,
        description="Let the reference follow the policy: mix the policy into it every ref_model_sync_steps",
    )
    ref_model_mixup_alpha: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.6, description="Fraction of the policy in that mixture"
    )
    ref_model_sync_steps: Annotated[int, Field(ge=1)] = Field(
        512, description="Optimizer steps after which the reference follows"
    )

    @model_validator(mode="after")
    def _nothing_follows_in_vain(self) -> KlOptions:
        strength = self._kl_strength
        if self.sync_ref_model and not self.has_reference:
            raise ValueError(
                f"sync_ref_model needs a reference, but {strength} is 0: leave it out, or choose a {strength} above 0"
            )
        given = self.model_dump(exclude_defaults=True)
        for name in ("ref_model_mixup_alpha", "ref_model_sync_steps"):
            if name in given and not self.sync_ref_model:
                raise ValueError(f"{name} needs sync_ref_model true")
        return self

    @property
    def has_reference(self) -> bool:
        """Whether rewards or the loss hold a KL term."""
        return bool(getattr(self, self._kl_strength))

    @property
    def kl_kind(self) -> KlEstimator:
        """Estimator of the KL divergence."""
        return self.kl_estimator or "k1"


class CorrectionOptions(Section):
    """Importance weights that correct the train-inference mismatch."""

    rollout_importance_sampling_mode: CorrectionMode = Field(
        "auto",
        description="Importance weights against the train-inference mismatch; auto: token_truncate for engines other "
        "than the one in this process, else off",
    )
    rollout_importance_sampling_threshold: PositiveFloat = Field(2.0, description="Largest weight of that correction")
    rollout_importance_sampling_min: PositiveFloat | None = Field(
        None, description="Smallest weight of that correction"
    )
    rollout_importance_sampling_aggregate: Literal["product", "mean"] = Field(
        "product", description="Weight of a sequence: the product over its tokens, or their geometric mean"
    )


LossType = Literal["dapo", "grpo", "dr_grpo", "gspo", "cispo", "sapo", "bnpo"]
Estimator = Literal["grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "opo", "reinforce"]
Level = Literal["token", "sequence", "sequence_token"]

CISPO_CAP = 5.0
"""The largest importance weight of `cispo` where the user names none."""


class AlgorithmOptions(KlOptions, CorrectionOptions):
    """How rewards become advantages, and advantages a loss."""

    like: Library | None = Field(
        None, description="Compute as this library does under the same names: sets the constants that are not given"
    )
    advantage_estimator: Estimator = Field("grpo", description="What is subtracted from a reward, and what divides it")
    loss_type: LossType = Field(
        "dapo",
        description="Shape of the loss and what it is a mean over: dapo, cispo over tokens; grpo, gspo, sapo over "
        "completions; dr_grpo over completions of max_completion_length tokens",
    )
    importance_sampling_level: Level | None = Field(
        None,
        description="Importance ratios per token, or per completion (sequence; sequence_token with a gradient per "
        "token); default: sequence for gspo, else token",
    )
    num_iterations: Annotated[int, Field(ge=1)] = Field(1, description="How many steps learn from each completion")
    steps_per_generation: Annotated[int, Field(ge=1)] = Field(
        1, description="Optimizer steps that one round of completions serves"
    )
    epsilon: Annotated[float, Field(gt=0.0, le=1.0)] = Field(0.2, description="The ratio is clipped below 1 - epsilon")
    epsilon_high: PositiveFloat | None = Field(
        None, description="The ratio is clipped above 1 + epsilon_high; default: epsilon. cispo: see cispo_bound"
    )
    delta: Annotated[float, Field(gt=1.0)] | None = Field(
        None, description="Dual clip: the ratio of a completion with a negative advantage counts at most so much"
    )
    cispo_bound: Literal["absolute", "relative"] = Field(
        "absolute",
        description="Bounds of cispo's weight: at most epsilon_high (default 5), or in 1 - epsilon to 1 + epsilon_high",
    )
    sapo_temperature_pos: PositiveFloat = Field(1.0, description="Temperature of sapo's gate, positive advantages")
    sapo_temperature_neg: PositiveFloat = Field(1.05, description="Temperature of sapo's gate, other advantages")
    log_ratio_clamp: PositiveFloat | None = Field(
        None, description="Clamp the log of the importance ratio of a token to ± this"
    )
    scale_rewards: Literal["group", "batch", "none", "gdpo"] | None = Field(
        None,
        description="Standard deviation that divides centred rewards: of the group, of the round (batch), none, or of "
        "each reward function by itself (gdpo); default: group for grpo, else none",
    )
    advantage_eps: PositiveFloat = Field(1e-4, description="Added to that standard deviation")
    leave_one_out: bool = Field(
        False, description="The mean and standard deviation of grpo are those of the group's other completions"
    )
    lone_completion: Literal["zero", "reward"] = Field(
        "zero", description="Advantage of a completion that is alone in its group"
    )
    whiten_variance: Literal["unbiased", "biased"] = Field(
        "unbiased", description="Variance by which reinforce_plus_plus whitens over tokens: divided by n - 1, or by n"
    )
    beta: NonNegativeFloat = Field(0.0, description="Strength of the KL divergence from the reference; 0 needs none")
    kl_in_reward: bool = Field(
        False, description="Subtract the KL divergence from the reward rather than add it to the loss"
    )
    use_bias_correction_kl: bool = Field(
        False, description="Multiply the KL term of the loss by the importance ratio, which makes its gradient unbiased"
    )
    off_policy_sequence_mask_delta: PositiveFloat | None = Field(
        None,
        description="Leave out completions with a negative advantage that became less likely by more than this, in "
        "nats per token",
    )
    top_entropy_quantile: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="Learn from this part of the tokens only, those of the highest entropy"
    )
    log_entropy: bool = Field(False, description="Log the entropy of the policy")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_preset(cls, given: Any) -> Any:
        return with_preset(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _only_what_applies(self) -> AlgorithmOptions:
        if self.loss_type in ("cispo", "sapo") and self.delta is not None:
            raise ValueError(f"delta bounds a clipped loss, and {self.loss_type} has none")
        if self.loss_type == "cispo" and self.cispo_bound == "absolute" and (self.epsilon_high or CISPO_CAP) <= 1:
            raise ValueError(
                f"epsilon_high {self.epsilon_high:g} would scale every token down: loss_type cispo takes it as the "
                "largest weight itself. Usual is 5; cispo_bound relative makes it 1 + epsilon_high"
            )
        if self.delta is not None and self.loss_type not in ("cispo", "sapo") and self.delta <= 1 + self.upper:
            raise ValueError(f"delta {self.delta:g} must be above 1 + epsilon_high, which is {1 + self.upper:g}")
        if self.scale_rewards == "gdpo" and self.advantage_estimator != "grpo":
            raise ValueError(f"scale_rewards gdpo belongs to advantage_estimator grpo, not {self.advantage_estimator}")
        if self.leave_one_out and (self.advantage_estimator != "grpo" or self.scaling not in ("group", "none")):
            raise ValueError("leave_one_out belongs to advantage_estimator grpo with scale_rewards group or none")
        return self

    @property
    def upper(self) -> float:
        """By how much the ratio may exceed 1 before it is clipped."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def cispo_limits(self) -> tuple[float | None, float]:
        """Least and largest weight of a token under `cispo`."""
        if self.cispo_bound == "absolute":
            return None, self.epsilon_high or CISPO_CAP
        return 1 - self.epsilon, 1 + self.upper

    @property
    def level(self) -> Level:
        """Whether each token has an importance ratio, or each completion."""
        return self.importance_sampling_level or ("sequence" if self.loss_type == "gspo" else "token")

    @property
    def mean_over(self) -> Literal["tokens", "completions", "length"]:
        """Whether the loss is a mean over tokens, completions, or completions times their maximum length."""
        if self.loss_type == "dr_grpo":
            return "length"
        return "tokens" if self.loss_type in ("dapo", "cispo", "bnpo") else "completions"

    @property
    def scaling(self) -> Literal["group", "batch", "none", "gdpo"]:
        """Which standard deviation divides centred rewards."""
        return self.scale_rewards or ("group" if self.advantage_estimator == "grpo" else "none")

    @property
    def kl_kind(self) -> KlEstimator:
        """Estimator of the KL divergence."""
        return self.kl_estimator or ("k1" if self.kl_in_reward else "k3")

    @property
    def kl_in_loss(self) -> bool:
        """Whether the loss has a KL term."""
        return self.beta > 0 and not self.kl_in_reward

    def notes(self) -> list[str]:
        """Return what the user ought to know about these options, one line each."""
        lines = []
        if self.loss_type == "bnpo":
            lines.append("loss_type bnpo is computed as dapo: a mean over a micro-batch would depend on its size")
        if self.kl_in_loss and self.kl_kind == "k1" and not self.use_bias_correction_kl:
            lines.append("kl_estimator k1 in the loss has a gradient whose mean is zero: k2 and k3 have an effect")
        return lines
