"""Base of rewards that score each completion by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from swift.contracts import RewardItem


class CompletionReward(ABC):
    """Implements `swift.contracts.Reward`; a subclass defines `score_one`."""

    @abstractmethod
    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion; None if the reward does not apply to it."""

    def score(self, items: Sequence[RewardItem]) -> list[float | None]:
        """Return a value for each completion."""
        return [self.score_one(item) for item in items]
