"""Data report: rows read, samples kept, and why rows were rejected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from swift.config.media import NAMES
from swift.errors import DataError, listed
from swift.untrusted import shown

_NAMED = 10
"""Keys of messages that are listed."""


@dataclass
class SourceCount:
    """One data set."""

    name: str
    rows: int
    available: int
    """Rows that it has; more than `rows` where `#N` took the first N."""
    samples: int = 0
    tokens: int = 0
    loss_tokens: int = 0


@dataclass
class Rejected:
    """Samples that could not be used for one reason."""

    count: int
    location: str
    """Where the first of them stands."""
    detail: str


@dataclass
class DataReport:
    """Counts of one data set, or of several that were concatenated."""

    sources: list[SourceCount] = field(default_factory=list)
    rejected: dict[str, Rejected] = field(default_factory=dict)
    turn_by_turn: int = 0
    """Conversations of which the chat template made several texts."""
    unused_columns: list[str] = field(default_factory=list)
    ends_turns: bool = True
    """Whether the chat template ends the assistant's turn with a special token."""
    unused_keys: dict[str, str] = field(default_factory=dict)
    """Keys of messages that the chat template does not write, and where the first of each is."""
    without_reasoning: int = 0
    """Conversations whose earlier turns the chat template writes without their reasoning."""
    formats: dict[str, int] = field(default_factory=dict)
    """Usable rows of each format."""
    media: dict[str, int] = field(default_factory=dict)
    """Images, videos and sounds, by kind."""
    media_tokens: int = 0
    """Tokens that stand for them, among all."""

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources)

    @property
    def samples(self) -> int:
        return sum(source.samples for source in self.sources)

    @property
    def tokens(self) -> int:
        return sum(source.tokens for source in self.sources)

    @property
    def loss_tokens(self) -> int:
        return sum(source.loss_tokens for source in self.sources)

    @property
    def unusable(self) -> int:
        return sum(rejected.count for rejected in self.rejected.values())

    def reject(self, reason: str, location: str, detail: str, count: int = 1) -> None:
        """Count samples that cannot be used; the first one of each reason is kept to be shown."""
        self.rejected.setdefault(reason, Rejected(0, location, detail)).count += count

    def check(self, *, strict: bool, some: bool = True) -> None:
        """Refuse any unusable sample when strict, and data with nothing to learn from unless `some` is false."""
        first = next(iter(self.rejected.items()), None)
        if strict and first is not None:
            reason, rejected = first
            raise DataError(
                f"{rejected.location}: {reason}: {rejected.detail}.",
                hint=f"{self.unusable} of {self.rows} rows cannot be used. Fix them, or leave data.strict out.",
            )
        if strict and self.unused_keys:
            raise unused_key(*next(iter(self.unused_keys.items())))
        if self.samples == 0 and some:
            names = ", ".join(source.name for source in self.sources)
            why = "; ".join(
                f"{reason}, first in {rejected.location}: {shown(rejected.detail)}"
                for reason, rejected in self.rejected.items()
            )
            raise DataError(
                f"None of the {self.rows} rows of {names} can be trained on.",
                hint=f"Reasons: {why}" if why else None,
            )

    def lines(self) -> list[str]:
        """Return the report, for people to read."""
        lines = []
        for source in self.sources:
            part = f" (the first of {source.available:,})" if source.rows < source.available else ""
            line = f"{source.name}: {source.rows:,} rows{part}, {source.samples:,} samples, {source.tokens:,} tokens"
            # Prompts have none: what is learned are the answers, which are not there yet.
            lines.append(f"{line}, {source.loss_tokens:,} of them learned" if source.loss_tokens else line)
        if self.media:
            counts = ", ".join(f"{count:,} {NAMES[kind]}s" for kind, count in self.media.items())
            lines.append(f"{counts}, which are {self.media_tokens:,} of the tokens")
        lines += self.lines_of_rejected()
        if self.turn_by_turn:
            lines.append(
                f"{self.turn_by_turn:,} conversations are laid out turn by turn, because the chat template rewrites "
                "earlier turns; --data.loss_on last_round learns only the last"
            )
        if not self.ends_turns:
            lines.append("The chat template ends completions without a special token: the model may not learn to stop")
        if self.without_reasoning:
            lines.append(
                f"{self.without_reasoning:,} conversations are learned without the reasoning of earlier turns, which "
                "the chat template leaves out at inference too"
            )
        if len(self.formats) > 1:
            counts = ", ".join(f"{count:,} × {name}" for name, count in self.formats.items())
            lines.append(f"Rows of several formats: {counts}")
        if self.unused_columns:
            lines.append(f"Columns that are not used: {', '.join(self.unused_columns)}")
        if self.unused_keys:
            named = [f"{shown(key)} (first {location})" for key, location in self.unused_keys.items()]
            lines.append(f"Keys of messages that are not used: {listed(named, _NAMED)}")
        return lines

    def lines_of_rejected(self) -> list[str]:
        """Return the part of the report on rows that cannot be used; nothing where all can be."""
        if not self.rejected:
            return []
        of_all = f" of {self.rows:,}" if self.rows else ""
        often_first = sorted(self.rejected.items(), key=lambda item: -item[1].count)
        return [f"{self.unusable:,}{of_all} rows cannot be used:"] + [
            f"  {rejected.count:,} × {reason}; first {rejected.location}: {rejected.detail}"
            for reason, rejected in often_first
        ]

    def count_usable(self, row_format: str, unused: Iterable[str], *, turn_by_turn: bool) -> None:
        """Add a usable row; a format without a name is not counted."""
        self.turn_by_turn += turn_by_turn
        self.unused_columns = list(dict.fromkeys([*self.unused_columns, *unused]))
        if row_format:
            self.formats[row_format] = self.formats.get(row_format, 0) + 1

    def add(self, more: DataReport) -> None:
        """Add the report on further rows of the same data sets."""
        for source, other in zip(self.sources, more.sources, strict=True):
            source.rows += other.rows
            source.samples += other.samples
            source.tokens += other.tokens
            source.loss_tokens += other.loss_tokens
        for reason, rejected in more.rejected.items():
            self.reject(reason, rejected.location, rejected.detail, rejected.count)
        self.turn_by_turn += more.turn_by_turn
        self.unused_columns = list(dict.fromkeys([*self.unused_columns, *more.unused_columns]))
        self.unused_keys = {**more.unused_keys, **self.unused_keys}
        self.without_reasoning += more.without_reasoning
        self.formats = _summed(self.formats, more.formats)
        self.media = _summed(self.media, more.media)
        self.media_tokens += more.media_tokens

    def as_dict(self) -> dict[str, Any]:
        """JSON values, for the cache and the run's summary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DataReport:
        """Rebuild a report from what `as_dict` returned."""
        sources = [SourceCount(**source) for source in values["sources"]]
        rejected = {reason: Rejected(**rejected) for reason, rejected in values["rejected"].items()}
        return cls(**{**values, "sources": sources, "rejected": rejected})

    def under_names(self, names: Sequence[str]) -> DataReport:
        """Rename data sets of the same content to their current names: the cache knows content alone."""
        renamed = dict(zip([source.name for source in self.sources], names, strict=True))
        for source in self.sources:
            source.name = renamed[source.name]

        def current(location: str) -> str:
            before = next((name for name in renamed if location.startswith(name)), "")
            return renamed.get(before, "") + location.removeprefix(before)

        for rejected in self.rejected.values():
            rejected.location = current(rejected.location)
        self.unused_keys = {key: current(location) for key, location in self.unused_keys.items()}
        return self


def unused_key(key: str, location: str) -> DataError:
    """Return the error of strict data about a key of messages that is not used."""
    return DataError(
        f"{location}: the key '{shown(key)}' of a message is not used: the chat template does not write it.",
        hint="Remove it, give a template that writes it (--model.chat_template FILE), or leave data.strict out.",
    )


def _summed(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}
