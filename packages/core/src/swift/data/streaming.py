"""Samples from data that is read while training: nothing is counted, tokenised or packed beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from swift.data.conversation import Unusable
from swift.data.corpus import DatasetPart, stream_rows
from swift.data.encode import SampleEncoder
from swift.data.encodings import ReadRow, Sample
from swift.data.report import DataReport, unused_key
from swift.data.samples import Encoded
from swift.errors import DataError, SwiftError

TOGETHER = 64
"""Rows that are read and tokenised at a time."""


class SampleStream:
    """Encoded samples of the data sets, epoch after epoch."""

    def __init__(self, names: Sequence[str], encoder: SampleEncoder) -> None:
        self._names = names
        self._encoder = encoder
        self._opened: dict[str, DatasetPart] = {}
        self._without_reasoning: set[str] = set()
        """Rows whose earlier turns the chat template has written without their reasoning."""
        self.report = DataReport(ends_turns=encoder.ends_turns)
        """What could not be used, as far as the first epoch was read."""

    @property
    def media_kinds(self) -> frozenset[str]:
        """Which kinds of media rows may hold: those that the model takes and the objective learns from."""
        tokens = self._encoder.images
        return frozenset() if tokens is None else tokens.kinds & self._encoder.encoding.media

    def epoch(self, number: int) -> Iterator[Encoded]:
        """Yield all samples once, in the order of the data sets."""
        known = 0
        for group in _together(self._understood(number)):
            for (sample, location, _), made in zip(group, self._encoder.encode_many(group), strict=True):
                if isinstance(made, Unusable):
                    self._reject(number, made, location)
                    continue
                self._take_omissions()
                if number == 0:
                    self.report.without_reasoning += location in self._without_reasoning
                    unused = () if self._encoder.encoding.keeps_columns else sample.extras
                    self.report.count_usable(sample.format, unused, turn_by_turn=made.turn_by_turn)
                for encoded in made.samples:
                    yield replace(encoded, sample_id=known)
                    known += 1
        if known == 0:
            raise DataError(
                f"No row of {', '.join(self._names)} can be trained on.",
                hint="\n".join(self.report.lines()) or None,
            )

    def _understood(self, epoch: int) -> Iterator[ReadRow]:
        """Return each sample, with the one after it where the encoding needs that; the first follows the last."""
        rows = self._samples(epoch)
        if not self._encoder.encoding.needs_following:
            yield from (ReadRow(sample, location) for location, sample in rows)
            return
        first = next(rows, None)
        if first is None:
            return
        location, sample = first
        for next_location, following in chain(rows, [first]):
            yield ReadRow(sample, location, following)
            location, sample = next_location, following

    def _samples(self, epoch: int) -> Iterator[tuple[str, Sample]]:
        seen = set()
        for part, location, written in stream_rows(self._names, self._encoder.section, self._opened):
            if part.name not in seen:
                part.check_format(written, self._encoder.encoding, location)
                seen.add(part.name)
            try:
                yield location, part.understand(written, self._encoder.encoding, location)
            except Unusable as unusable:
                self._reject(epoch, unusable, location)

    def _take_omissions(self) -> None:
        omissions = self._encoder.take_omissions()
        if self._encoder.section.strict and omissions.keys:
            raise unused_key(*next(iter(omissions.keys.items())))
        self._without_reasoning |= omissions.reasoning
        self.report.unused_keys = {**omissions.keys, **self.report.unused_keys}

    def _reject(self, epoch: int, unusable: Unusable, location: str) -> None:
        if self._encoder.section.strict:
            raise DataError(f"{location}: {unusable.reason}: {unusable.detail}.", hint="Fix it or disable data.strict.")
        if epoch == 0:
            self.report.reject(unusable.reason, location, unusable.detail)


def _together(rows: Iterator[ReadRow]) -> Iterator[list[ReadRow]]:
    """Yield some rows at a time; those before one that cannot be read come before its error."""
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
