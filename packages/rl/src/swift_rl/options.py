"""Options of objectives that learn from answers in rounds, as flags and in the section `objective`."""

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
        """Return over how many optimizer steps the answers of a round are dealt out."""
        return 1

    @property
    def passes(self) -> int:
        """Return how often each answer of a round is learned from."""
        return 1

    @property
    def learns_without_rewards(self) -> bool:
        """Return whether something else than a reward says what to learn."""
        return False

    @property
    def steps_per_round(self) -> int:
        """Return how many optimizer steps one round serves."""
        return self.steps_per_pass * self.passes

    def notes(self) -> list[str]:
        """Return what the user ought to know about these options, one line each."""
        return []


class GrpoOptions(AlgorithmOptions, TeacherOptions, OnlineOptions):
    """Options of `grpo`."""

    teacher_kl_coef: NonNegativeFloat = Field(
        1.0,
        description="With a teacher: added to the advantage of a token is so many times by how much likelier the "
        "teacher takes it to be than the policy, a sample of -KL(policy || teacher)",
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
                    f"{given[0]} is about a teacher, and none is named: choose teacher_model or teacher_model_server"
                )
            return self
        if not self.teacher_kl_coef:
            raise ValueError("teacher_kl_coef 0 asks a teacher for nothing: leave the teacher out")
        if self.temperature != 1.0:
            raise ValueError(
                f"a teacher is scored at temperature 1, and answers are drawn at temperature {self.temperature:g}: "
                "leave temperature out"
            )
        looked_at = {"dynamic_sample": self.dynamic_sample, "kl_in_reward": self.kl_in_reward}
        for name, on in looked_at.items():
            if on and self.learns_without_rewards:
                raise ValueError(f"{name} is about rewards, and there are none: leave it out, or choose reward_funcs")
        return self

    @property
    def learns_without_rewards(self) -> bool:
        """Return whether a teacher alone says what to learn."""
        return self.has_teacher and not (self.reward_funcs or self.reward_model or self.environment)

    @property
    def asks_policy(self) -> bool:
        """Whether the policy has to be asked about answers before it learns from them, whatever draws them."""
        in_reward = self.beta > 0 and self.kl_in_reward
        return self.steps_per_round > 1 or in_reward or self.has_teacher or self.top_entropy_quantile < 1

    @property
    def steps_per_pass(self) -> int:
        """Return over how many optimizer steps the answers of a round are dealt out."""
        return self.steps_per_generation

    @property
    def passes(self) -> int:
        """Return how often each answer of a round is learned from."""
        return self.num_iterations
