"""The prompts of a run by their position in its order: epoch after epoch, each shuffled anew."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from swift.data.schedules import shuffler
from swift_rl.rounds.data import Prompt

if TYPE_CHECKING:
    from swift.data import Prepared


class Prompts:
    """The prompts of a data set."""

    def __init__(self, data: Prepared, *, seed: int, shuffle: bool) -> None:
        self._data = data
        self._seed = seed
        self._shuffle = shuffle
        self._order = lru_cache(maxsize=2)(self._order_of)

    def __len__(self) -> int:
        return len(self._data.samples)

    @property
    def fingerprint(self) -> str:
        """Return a hash of all prompts."""
        return self._data.samples.fingerprint

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each prompt."""
        return self._data.samples.lengths

    def columns(self) -> list[str]:
        """Return the columns of the first rows, for rewards."""
        first = [self.at(index, index).columns for index in range(min(len(self), 20))]
        return list(dict.fromkeys(column for columns in first for column in columns))

    def next(self, cursor: int, count: int) -> list[Prompt]:
        """Return the next prompts from a position of the run's order on."""
        return [self.at(self.index_at(position), position) for position in range(cursor, cursor + count)]

    def index_at(self, position: int) -> int:
        """Return the index of the sample at a position of the run's order."""
        epoch, index = divmod(position, len(self))
        return int(self._order(epoch)[index])

    def all(self) -> Sequence[Prompt]:
        """Return every prompt, in the order of the data set."""
        return [self.at(index, index) for index in range(len(self))]

    def at(self, index: int, position: int) -> Prompt:
        """Return the prompt of a sample, which the run takes at a position of its order."""
        sample = self._data.samples[index]
        row = int(self._data.store.rows[sample.sample_id])
        read = self._data.corpus.sample(row)
        return Prompt(
            number=sample.sample_id,
            position=position,
            token_ids=np.asarray(sample.segments[0].input_ids),
            messages=[dict(message) for message in read.conversation.messages],
            columns=dict(read.extras),
            source=self._data.corpus.location(row),
            tools=list(read.conversation.tools),
        )

    def _order_of(self, epoch: int) -> np.ndarray:
        count = len(self)
        return shuffler(self._seed, epoch).permutation(count) if self._shuffle else np.arange(count)
