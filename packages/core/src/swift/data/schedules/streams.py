"""The schedule of a stream: batches from data that is read while training.

Every process reads the whole stream and takes its slice of each batch, so the order is again the run's own. A resumed
run reads the stream up to its step once more, without training on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice

import numpy as np

from swift.config.incompatibilities import endless_stream
from swift.contracts.schedule import BatchSchedule
from swift.data.batch import Batch, Row
from swift.data.samples import Encoded
from swift.data.schedules.epochs import shuffler
from swift.data.schedules.layout import BatchLayout, WeighsRows, pack, rows_in_memory
from swift.data.streaming import SampleStream

SHUFFLE_BUFFER = 4096
"""Samples among which the next one is drawn."""
PACKING_WINDOW = 1024
"""Samples that are packed together."""


class StreamingSchedule(BatchSchedule):
    """The batches of a run over a stream. Steps are asked for in rising order; the first one may be any."""

    steps_per_epoch: int | None = None

    def __init__(self, stream: SampleStream, objective: WeighsRows, layout: BatchLayout) -> None:
        if layout.max_steps is None:
            raise endless_stream()
        self.total_steps = layout.max_steps
        self._layout = layout
        self._batches = rows_in_memory(layout, objective)
        self._stream = stream
        self._rows = self._all_rows()
        self._epoch = 0
        self._next_step = 0

    def epoch_at(self, step: int) -> float:
        """Return the epoch that was being read last: how far into it the stream is, nobody knows."""
        return float(self._epoch)

    def begin(self) -> None:
        """Read as far as the first row: data that cannot be used at all is found out before the run begins."""
        first = next(self._rows)
        self._rows = chain([first], self._rows)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """Return one process's slice of the global batch of a step."""
        if step < self._next_step:
            raise ValueError(f"a stream cannot go back from step {self._next_step} to step {step}")
        skipped = (step - self._next_step) * self._layout.global_rows
        rows = list(islice(self._rows, skipped, skipped + self._layout.global_rows))
        self._next_step = step + 1
        return self._batches.batch(step, rows, [sample for row in rows for sample in row], data_rank, data_size)

    def _all_rows(self) -> Iterator[Row]:
        """Rows, epoch after epoch without end."""
        for epoch in count():
            self._epoch = epoch
            samples = self._stream.epoch(epoch)
            if self._layout.shuffle:
                samples = shuffled(samples, shuffler(self._layout.order_seed, epoch), SHUFFLE_BUFFER)
            if self._layout.capacity is None:
                yield from ((sample,) for sample in samples)
            else:
                yield from packed(samples, self._layout.capacity)


def shuffled(samples: Iterator[Encoded], random: np.random.RandomState, size: int) -> Iterator[Encoded]:
    """Draw each next sample from a buffer of so many."""
    buffer = list(islice(samples, size))
    for sample in samples:
        at = random.randint(len(buffer))
        yield buffer[at]
        buffer[at] = sample
    for index in random.permutation(len(buffer)):
        yield buffer[index]


def packed(samples: Iterator[Encoded], capacity: int) -> Iterator[Row]:
    """Packs of at most `capacity` tokens, made from so many samples at a time as the window holds."""
    while window := list(islice(samples, PACKING_WINDOW)):
        lengths = np.array([sample.tokens for sample in window])
        for indices in pack(lengths, np.arange(len(window)), capacity):
            yield tuple(window[index] for index in indices)
