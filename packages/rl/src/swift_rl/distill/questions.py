"""The prompts of conversations that have an answer already, which may be learned instead of the student's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from swift_rl.rounds.prompts import Prompts

if TYPE_CHECKING:
    from swift.data.samples import Encoded, Segment
    from swift_rl.rounds.data import Prompt


class AnsweredPrompts(Prompts):
    """Prompts, each of which ends where the last learned answer of its row begins, or with the row."""

    def at(self, index: int, turn: int) -> Prompt:
        """Return the prompt of one sample, as the run takes it at that place of its order."""
        prompt = super().at(index, turn)
        return replace(prompt, token_ids=prompt.token_ids[: beginning_of_answer(self._data.samples[index].segments[0])])

    def lengths(self) -> np.ndarray:
        """Return how many tokens each prompt has."""
        return np.array([beginning_of_answer(self._data.samples[index].segments[0]) for index in range(len(self))])

    def answered(self, cursor: int, count: int) -> list[Encoded]:
        """Return the rows with their answers, from one place of the run's order on."""
        turns = range(cursor, cursor + count)
        return [self._data.samples[int(self._order(turn // len(self))[turn % len(self)])] for turn in turns]


def beginning_of_answer(segment: Segment) -> int:
    """Return where the last stretch of learned tokens begins; behind the last token where nothing is learned."""
    learned = np.flatnonzero(segment.weights > 0)
    if not len(learned):
        return len(segment)
    gaps = np.flatnonzero(np.diff(learned) > 1)
    return int(learned[gaps[-1] + 1] if len(gaps) else learned[0])
