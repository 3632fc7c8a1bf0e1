"""Cases of online learning for the conformance kit of backends, and the kits of rewards and environments.

    from swift_testing import CASES, BackendConformance
    from swift_rl import testing

    class TestMine(BackendConformance):
        backend = "mine"
        cases = (*CASES, *testing.CASES)

    class TestMyReward(testing.RewardConformance):
        reward = "mine"
        items = (RewardItem(messages, "one completion"), RewardItem(messages, "another"))

    class TestMyEnvironment(testing.EnvironmentConformance):
        environment = "mine"
        starts = (EpisodeStart(messages, seed=1), EpisodeStart(messages, seed=2))
        responses = ("of the first turn", "of the second turn")

The losses of the cases are those of `grpo`, `ppo` and `gkd`. The values of their tokens are computed from the indices
of samples, so no engine generates and every backend learns from the same rounds.
"""

from swift_rl.testing.cases import CASES
from swift_rl.testing.conformance import EnvironmentConformance, RewardConformance

__all__ = ["CASES", "EnvironmentConformance", "RewardConformance"]
