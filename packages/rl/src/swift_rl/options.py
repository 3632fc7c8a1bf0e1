"""All options of `grpo`, as flags and in the section `objective`."""

from __future__ import annotations

from swift_rl.algorithm_options import AlgorithmOptions
from swift_rl.reward_options import RewardOptions
from swift_rl.rollout_options import RolloutOptions


class GrpoOptions(AlgorithmOptions, RolloutOptions, RewardOptions):
    """Options of `grpo`."""
