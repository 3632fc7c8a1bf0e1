"""The conformance kit: a value depends on its completion alone."""

from swift.contracts import RewardItem
from swift_rl.testing import RewardConformance

QUESTION = ({"role": "user", "content": "May I?"},)


class TestPolite(RewardConformance):
    reward = "polite"
    items = (
        RewardItem(QUESTION, "Yes, please.", columns={"formal": True}),
        RewardItem(QUESTION, "No.", columns={"formal": True}),
        RewardItem(QUESTION, "Yo.", columns={"formal": False}),
    )
