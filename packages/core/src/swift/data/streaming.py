"""Batches from data that is read while training: nothing is counted, tokenised or packed beforehand.

Every process reads the whole stream and takes its slice of each batch, so the order is again the run's own. A resumed
run reads the stream up to its step once more, without training on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, islice

import numpy as np

from swift.contracts import Objective
from swift.data.batch import Batch, Row
from swift.data.conversation import Unusable
from swift.data.corpus import Part, stream_rows
from swift.data.encode import SampleEncoder
from swift.data.encodings import ReadRow, Sample
from swift.data.packing import pack
from swift.data.report import DataReport, merge_columns
from swift.data.sampler import Layout, shuffler
from swift.data.samples import Encoded
from swift.errors import ConfigError, DataError, SwiftError

SHUFFLE_BUFFER = 4096
"""Samples among which the next one is drawn."""
TOGETHER = 64
"""Rows that are read and tokenised at a time."""
PACKING_WINDOW = 1024
"""Samples that are packed together."""


class SampleStream:
    """Encoded samples of the data sets, epoch after epoch."""

    def __init__(self, names: Sequence[str], encoder: SampleEncoder) -> None:
        self._names = names
        self._encoder = encoder
        self._opened: dict[str, Part] = {}
        self.report = DataReport(ends_turns=encoder.ends_turns)
        """What could not be used, as far as the first epoch was read."""

    def epoch(self, number: int) -> Iterator[Encoded]:
        """All samples once, in the order of the data sets."""
        known = 0
        for group in _together(self._understood(number)):
            for (sample, place, _), made in zip(group, self._encoder.encode_many(group), strict=True):
                if isinstance(made, Unusable):
                    self._reject(number, made, place)
                    continue
                if number == 0:
                    self.report.turn_by_turn += made.turn_by_turn
                    self.report.unused_columns = merge_columns(self.report.unused_columns, sample.extras)
                for encoded in made.samples:
                    yield replace(encoded, sample_id=known)
                    known += 1
        if known == 0:
            raise DataError(
                f"There is nothing to learn from in any row of {', '.join(self._names)}.",
                hint="\n".join(self.report.lines()) or None,
            )

    def _understood(self, epoch: int) -> Iterator[ReadRow]:
        """Return each sample, with the one after it where the encoding needs that; the first follows the last."""
        rows = self._samples(epoch)
        if not self._encoder.encoding.needs_following:
            yield from (ReadRow(sample, place) for place, sample in rows)
            return
        first = next(rows, None)
        if first is None:
            return
        place, sample = first
        for next_place, following in chain(rows, [first]):
            yield ReadRow(sample, place, following)
            place, sample = next_place, following

    def _samples(self, epoch: int) -> Iterator[tuple[str, Sample]]:
        seen = set()
        for part, place, written in stream_rows(self._names, self._encoder.section, self._opened):
            if part.name not in seen:
                part.check_format(written, self._encoder.encoding, place)
                seen.add(part.name)
            try:
                yield place, part.understand(written, self._encoder.encoding, place)
            except Unusable as unusable:
                self._reject(epoch, unusable, place)

    def _reject(self, epoch: int, unusable: Unusable, place: str) -> None:
        if self._encoder.section.strict:
            raise DataError(
                f"{place}: {unusable.reason}: {unusable.detail}.", hint="Mend it, or leave data.strict out."
            )
        if epoch == 0:
            self.report.reject(unusable.reason, place, unusable.detail)


class StreamingPlan:
    """The batches of a run over a stream. Steps are asked for in rising order; the first one may be any."""

    steps_per_epoch: int | None = None

    def __init__(
        self,
        stream: SampleStream,
        objective: Objective,
        *,
        global_rows: int,
        micro_rows: int,
        seed: int,
        max_steps: int | None,
        shuffle: bool,
        packing: bool,
        flat: bool,
        max_length: int,
        pad_to_multiple: int = 1,
    ) -> None:
        if max_steps is None:
            raise ConfigError(
                "data.streaming reads the data set while training, so nobody knows how many steps an epoch has.",
                hint="Say how many to make: --train.max_steps N",
            )
        self.total_steps = max_steps
        self._layout: Layout[Row] = Layout(objective, _same, micro_rows, flat or packing, seed, pad_to_multiple)
        self._stream = stream
        self._global_rows = global_rows
        self._seed = seed
        self._shuffle = shuffle
        self._capacity = max_length if packing else None
        self._rows = self._all_rows()
        self._epoch = 0
        self._next_step = 0

    def epoch_at(self, step: int) -> float:
        """The epoch that was being read last: how far into it the stream is, nobody knows."""
        return float(self._epoch)

    def begin(self) -> None:
        """Read as far as the first row: data that cannot be used at all is found out before the run begins."""
        first = next(self._rows)
        self._rows = chain([first], self._rows)

    def batch(self, step: int, data_rank: int, data_size: int) -> Batch:
        """One process's slice of the global batch of a step."""
        if step < self._next_step:
            raise ValueError(f"a stream cannot go back from step {self._next_step} to step {step}")
        skipped = (step - self._next_step) * self._global_rows
        rows = list(islice(self._rows, skipped, skipped + self._global_rows))
        self._next_step = step + 1
        return self._layout.batch(step, rows, [sample for row in rows for sample in row], data_rank, data_size)

    def _all_rows(self) -> Iterator[Row]:
        """Rows, epoch after epoch without end."""
        for epoch in count():
            self._epoch = epoch
            samples = self._stream.epoch(epoch)
            if self._shuffle:
                samples = shuffled(samples, shuffler(self._seed, epoch), SHUFFLE_BUFFER)
            if self._capacity is None:
                yield from ((sample,) for sample in samples)
            else:
                yield from packed(samples, self._capacity)


def _together(rows: Iterator[ReadRow]) -> Iterator[list[ReadRow]]:
    """Some rows at a time; those before one that cannot be read come before its error."""
    group: list[ReadRow] = []
    try:
        for row in rows:
            group.append(row)
            if len(group) == TOGETHER:
                yield group
                group = []
    except SwiftError:
        yield group
        raise
    yield group


def _same(row: Row) -> Row:
    return row


def shuffled(samples: Iterator[Encoded], random: np.random.RandomState, size: int) -> Iterator[Encoded]:
    """Draws each next sample from a buffer of so many."""
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
