"""Options of objectives that learn in rounds, as flags and in the section `objective`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from swift.config.limits import Fraction, Name
from swift_rl.algorithm_options import AlgorithmOptions, CorrectionOptions, KlOptions
from swift_rl.distill.options import TeacherOptions
from swift_rl.reward_options import RewardOptions
from swift_rl.rollout_options import EnvironmentOptions, RolloutOptions


class OnlineOptions(KlOptions, CorrectionOptions, RolloutOptions, EnvironmentOptions, RewardOptions):
    """Options of an objective that rounds read; a subclass adds those of its algorithm."""

    _steps_per_pass: ClassVar[str]
    _passes: ClassVar[str]
    """The options that have these numbers."""

    @property
    def steps_per_pass(self) -> int:
        """Return the number of optimizer steps of a pass over a round."""
        return int(getattr(self, self._steps_per_pass))

    @property
    def passes(self) -> int:
        """Return the number of passes over a round."""
        return int(getattr(self, self._passes))

    @property
    def learns_without_rewards(self) -> bool:
        """Return whether the run can learn without rewards."""
        return False

    @property
    def steps_per_round(self) -> int:
        """Return the number of optimizer steps of a round."""
        return self.steps_per_pass * self.passes

    def notes(self) -> list[str]:
        """Return notes for the user about these options, one line each."""
        return []


class GrpoOptions(AlgorithmOptions, TeacherOptions, OnlineOptions):
    """Options of `grpo`."""

    _steps_per_pass, _passes = "steps_per_generation", "num_iterations"

    teacher_kl_coef: NonNegativeFloat = Field(
        1.0,
        description="With a teacher: add this times log p(teacher) - log p(policy) to the advantage of each token",
    )

    @model_validator(mode="after")
    def _teachers_are_heard(self) -> GrpoOptions:
        if not self.has_teacher:
            given = self.model_dump(exclude_defaults=True)
            for name in (*TeacherOptions.model_fields, "teacher_kl_coef"):
                if name in given:
                    raise ValueError(
                        f"{name} needs a teacher: choose teacher_model or teacher_model_server, or leave it out"
                    )
            return self
        if not self.teacher_kl_coef:
            raise ValueError(
                "teacher_kl_coef 0 ignores the teacher: leave the teacher out, or choose a coefficient above 0"
            )
        if self.temperature != 1.0:
            raise ValueError(f"a teacher needs temperature 1, not {self.temperature:g}: leave temperature out")
        of_rewards = {"dynamic_sample": self.dynamic_sample, "kl_in_reward": self.kl_in_reward}
        for name, on in of_rewards.items():
            if on and self.learns_without_rewards:
                raise ValueError(f"{name} needs rewards: choose reward_funcs, or leave it out")
        return self

    @property
    def learns_without_rewards(self) -> bool:
        """Return whether the run learns from a teacher alone."""
        return self.has_teacher and not (self.reward_funcs or self.reward_model or self.environment)

    @property
    def evaluates_policy(self) -> bool:
        """Whether the policy is evaluated on completions before it learns from them, whichever engine samples them."""
        in_reward = self.beta > 0 and self.kl_in_reward
        return self.steps_per_round > 1 or in_reward or self.has_teacher or self.top_entropy_quantile < 1


class PpoOptions(OnlineOptions):
    """Options of `ppo`."""

    _kl_strength = "kl_coef"
    _steps_per_pass, _passes = "num_mini_batches", "num_ppo_epochs"

    num_generations: Annotated[int, Field(ge=1)] = Field(1, description="Completions per prompt")
    num_ppo_epochs: Annotated[int, Field(ge=1)] = Field(4, description="How many steps learn from each completion")
    num_mini_batches: Annotated[int, Field(ge=1)] = Field(
        1, description="Optimizer steps per round, in each of num_ppo_epochs"
    )
    gamma: Fraction = Field(1.0, description="Discount of later rewards")
    lam: Fraction = Field(0.95, description="λ of generalised advantage estimation: 0 trusts the critic, 1 the rewards")
    whiten_rewards: bool = Field(False, description="Divide the rewards of all tokens of a round by their deviation")
    kl_coef: NonNegativeFloat = Field(
        0.05, description="Strength of the KL divergence from the reference, subtracted from the reward of each token"
    )
    kl_target: PositiveFloat | None = Field(
        None,
        description="Adapt kl_coef after each round towards this KL divergence in nats per token; default: constant",
    )
    kl_horizon: Annotated[int, Field(ge=1)] = Field(
        10_000, description="Completions over which kl_coef adapts to kl_target; more is slower"
    )
    missing_eos_penalty: PositiveFloat | None = Field(
        None, description="Subtracted from the reward of completions that reached max_completion_length"
    )
    cliprange: PositiveFloat = Field(0.2, description="The ratio of the policy is clipped to 1 ± this")
    cliprange_value: PositiveFloat = Field(
        0.2, description="Clip values to ± this around those at the beginning of the round"
    )
    vf_coef: PositiveFloat = Field(0.1, description="Factor of the critic's loss")
    critic: Literal["separate", "shared"] = Field(
        "separate",
        description="A separate critic model, or a head on the policy's layers (shared), whose loss "
        "is added to the policy's with vf_coef",
    )
    critic_model: Name | None = Field(
        None,
        description="Initial model of the critic, such as the reward model; default: the policy's with a new head",
    )
    critic_lr: PositiveFloat | None = Field(None, description="Peak learning rate of the critic; default: the policy's")
    critic_warmup: Annotated[int, Field(ge=0)] = Field(0, description="First steps in which only the critic learns")

    @model_validator(mode="after")
    def _only_what_applies(self) -> PpoOptions:
        if self.dynamic_sample:
            raise ValueError("dynamic_sample has no effect with ppo, which compares no groups")
        for name in ("critic_model", "critic_lr", "critic_warmup") if self.critic == "shared" else ():
            if getattr(self, name):
                raise ValueError(
                    f"{name} needs critic separate, but critic is shared: leave it out, or choose critic separate"
                )
        return self
