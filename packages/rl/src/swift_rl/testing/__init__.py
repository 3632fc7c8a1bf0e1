"""Cases of online learning for the conformance kit of backends.

    from swift_testing import CASES, BackendConformance
    from swift_rl import testing

    class TestMine(BackendConformance):
        backend = "mine"
        cases = (*CASES, *testing.CASES)

The losses are those of `grpo`, `ppo` and `gkd`. The values of their tokens are computed from the indices of samples, so
no engine generates and every backend learns from the same rounds.
"""

from swift_rl.testing.cases import CASES

__all__ = ["CASES"]
