"""The conformance kit: an episode is a function of its start and of the responses."""

from swift.contracts import EpisodeStart
from swift_rl.testing import EnvironmentConformance

QUESTION = ({"role": "user", "content": "I think of a number from 0 to 7."},)


class TestGuessing(EnvironmentConformance):
    environment = "guessing"
    options = {"numbers": 8}
    starts = (EpisodeStart(QUESTION, seed=1), EpisodeStart(QUESTION, seed=2))
    responses = ("4 perhaps", "hm", "2")
