"""Encodings: how a row of a data set is read, and which segments of tokens it becomes."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from swift.config.media import KINDS, NAMES
from swift.data.conversation import STANDARD_TAGS, RoleTags, Unusable
from swift.data.conversation_tokens import ConversationEncoder, LossOn
from swift.data.formats import UNDERSTOOD, UNKNOWN_FORMAT, RowReader, Sample
from swift.data.images import COLUMNS
from swift.data.samples import Encoded
from swift.data.sources.rows import RowData
from swift.data.store import SampleSet
from swift.data.text import Steps
from swift.errors import DataError, PluginError

ALL_MEDIA = frozenset(KINDS)
"""For `Encoding.media`: images, videos and audio."""


class ReadRow(NamedTuple):
    """A row that was read, and what else encoding it may take."""

    sample: Sample
    location: str
    """Where the row stands, for messages: `train.jsonl:17`."""
    following: Sample | None = None
    """The next usable row of the data set, for encodings with `needs_following`; the first one follows the last."""


@dataclass(frozen=True)
class EncodedRow:
    """Result of encoding a row: mostly one encoded sample."""

    samples: tuple[Encoded, ...]
    turn_by_turn: bool = False
    """True when the chat template made several texts of one conversation."""


class Encoding(ABC):
    """How rows are read and encoded. An objective names one of core's, or brings one of its own.

    A subclass names itself and defines `read` and `encode`; the other members say what is different about it.
    """

    name: str
    version: int = 1
    """Part of the cache's key: raise it when the same row is to be encoded differently."""
    segment_names: tuple[str, ...] = ("sample",)
    """What the segments of a sample are, in order, for people."""
    segments_vary: bool = False
    """Whether a sample may have fewer or more segments than names: the last name stands for all further ones."""
    values: tuple[str, ...] = ()
    """Numbers that a sample may carry (`Encoded.values`): columns of the store and keys of `MicroBatch.values`."""
    token_values: tuple[str, ...] = ()
    """Numbers that every token of every segment has, one each: `Segment.token_values`, `MicroBatch.token_values`."""
    needs_following: bool = False
    """Whether `encode` is given the next row too."""
    loss_on: LossOn = "last_round"
    """What data.loss_on auto means."""
    can_split: bool = False
    """Whether a text that is too long may become several samples (data.truncation split)."""
    columns: str = UNDERSTOOD
    """The columns that are read, for the message about a data set that has none of them."""
    keeps_columns: bool = False
    """Whether columns that are not read are somebody else's, so that the report does not name them as unused."""
    modalities: frozenset[str] = frozenset({"text"})
    """What samples always hold. A backend that lacks one of these refuses the run before weights load."""
    media: frozenset[str] = frozenset()
    """What samples hold besides where the rows do: 'image', 'video', 'audio'. Rows with others cannot be used."""

    @abstractmethod
    def read(self, row: RowReader) -> Sample:
        """Return what a row means; raise `Unusable` when it cannot be used."""

    @abstractmethod
    def encode(self, row: ReadRow, encoder: ConversationEncoder) -> Steps[EncodedRow]:
        """Return the samples that a row becomes; raise `Unusable` when there is nothing to learn from it.

        A generator: `segment = yield from encoder.segment(conversation, row.location)` gives a conversation's tokens.
        """

    def remarks(self, samples: SampleSet) -> Sequence[str]:
        """Return what the user should know of a training set as a whole, a line each; asked before it is trained on."""
        return ()

    def cache_key(self) -> str:
        """Return what decides, besides rows and settings, what the rows become.

        That is normally the class, its version and the values that the object holds.
        """
        cls = type(self)
        try:
            settings = json.dumps(vars(self), sort_keys=True)
        except (TypeError, ValueError):
            raise PluginError(
                f"The encoding {self.name!r} holds values that are not JSON, so that tokenised data cannot be found "
                "again by them.",
                hint=f"Define cache_key() of {cls.__module__}.{cls.__qualname__}.",
            ) from None
        return f"{cls.__module__}.{cls.__qualname__} {self.version} {settings}"

    def understand(
        self, row: RowData, location: str, tags: RoleTags = STANDARD_TAGS, root: Path | None = None
    ) -> Sample:
        """Return what a renamed row means, with the columns that were not used; paths of images begin at `root`.

        Raise `Unusable` when the row cannot be used, and `DataError` when two columns claim the same meaning.
        """
        reader = RowReader(row, location, tags, root)
        sample = self.read(reader)
        self._check_media(row, sample)
        extras = {name: value for name, value in row.items() if name not in reader.used}
        return replace(sample, extras=extras) if extras or sample.extras else sample

    def _check_media(self, row: RowData, sample: Sample) -> None:
        """Refuse a row whose images, videos or sounds would be left out."""
        read = [sample.conversation, *([sample.rejected] if sample.rejected else ()), *sample.others]
        in_messages = {each.kind for conversation in read for each in conversation.media}
        for kind in KINDS:
            named = next((each for each in COLUMNS[kind] if each in row), None)
            if kind not in self.media and (named is not None or kind in in_messages):
                where = f"the column {named!r}" if named is not None else "in the messages"
                raise Unusable(f"holds {NAMES[kind]}s", f"{where}: this objective does not learn from {NAMES[kind]}s")

    def check_format(self, row: RowData, location: str, tags: RoleTags = STANDARD_TAGS) -> None:
        """Refuse a data set whose first row has no known columns."""
        try:
            self.understand(row, location, tags)
        except Unusable as unusable:
            if unusable.reason == UNKNOWN_FORMAT:
                raise DataError(
                    f"{location}: {unusable.detail}",
                    hint=f'The columns can be {self.columns}. Rename columns with --columns \'{{"yours": "query"}}\'.',
                ) from None
