"""Options of objectives that learn from answers in rounds, as flags and in the section `objective`."""

from __future__ import annotations

from swift_rl.algorithm_options import AlgorithmOptions
from swift_rl.environment_options import EnvironmentOptions
from swift_rl.reward_options import RewardOptions
from swift_rl.rollout_options import RolloutOptions


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
    def steps_per_round(self) -> int:
        """Return how many optimizer steps one round serves."""
        return self.steps_per_pass * self.passes

    def notes(self) -> list[str]:
        """Return what the user ought to know about these options, one line each."""
        return []


class GrpoOptions(AlgorithmOptions, OnlineOptions):
    """Options of `grpo`."""

    @property
    def steps_per_pass(self) -> int:
        """Return over how many optimizer steps the answers of a round are dealt out."""
        return self.steps_per_generation

    @property
    def passes(self) -> int:
        """Return how often each answer of a round is learned from."""
        return self.num_iterations
