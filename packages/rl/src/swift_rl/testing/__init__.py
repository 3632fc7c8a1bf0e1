"""Cases of online learning for the conformance kit of backends.

    from swift.testing import CASES, BackendConformance
    from swift_rl import testing

    class TestMine(BackendConformance):
        backend = "mine"
        cases = (*CASES, *testing.CASES)

The losses are those of `grpo`, `ppo` and `gkd`. What their tokens are given is made of numbers of samples, so that no
engine samples anything and every backend learns from the same rounds.
"""

from swift_rl.testing.cases import CASES

__all__ = ["CASES"]
