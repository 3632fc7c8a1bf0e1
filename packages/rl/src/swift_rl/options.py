"""Options of objectives that learn in rounds, as flags and in the section `objective`."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, model_validator

from swift_rl.algorithm_options import AlgorithmOptions
from swift_rl.distill.options import TeacherOptions
from swift_rl.environment_options import EnvironmentOptions
from swift_rl.reward_options import RewardOptions
from swift_rl.rollout_options import RolloutOptions

_OF_TEACHERS = (*TeacherOptions.model_fields, "teacher_kl_coef")


class OnlineOptions(RolloutOptions, EnvironmentOptions, RewardOptions):
    """Options of an objective that rounds read; a subclass adds those of its algorithm."""

    @property
    def steps_per_pass(self) -> int:
        """Return the number of optimizer steps of a pass over a round."""
        return 1

    @property
    def passes(self) -> int:
        """Return the number of passes over a round."""
        return 1

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

    teacher_kl_coef: NonNegativeFloat = Field(
        1.0,
        description="With a teacher: add this times log p(teacher) - log p(policy) to the advantage of each token",
    )

    @model_validator(mode="after")
    def _teachers_are_heard(self) -> GrpoOptions:
        if not self.has_teacher:
            fields = type(self).model_fields
            given = [
                name
                for name in _OF_TEACHERS
                if getattr(self, name) != fields[name].get_default(call_default_factory=True)
            ]
            if given:
                raise ValueError(
                    f"{given[0]} needs a teacher: choose teacher_model or teacher_model_server, or leave it out"
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

    @property
    def steps_per_pass(self) -> int:
        """Return the number of optimizer steps of a pass over a round."""
        return self.steps_per_generation

    @property
    def passes(self) -> int:
        """Return the number of passes over a round."""
        return self.num_iterations
