"""A data set before anything is made of it: how it was named, and rows of named columns."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import xxhash

from swift.data.conversation import STANDARD_TAGS, RoleTags
from swift.errors import DataError
from swift.untrusted import DEPTH, is_deeper, json_kind

RowData = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """One data set, as the user named it."""

    text: str
    """What was typed; names the data set in messages."""
    kind: Literal["path", "hf", "ms", "url"]
    location: str
    subset: str | None = None
    split: str = "train"
    limit: int | None = None
    """Only the first so many rows."""
    columns: Mapping[str, str] = field(default_factory=dict)
    tags: RoleTags = STANDARD_TAGS


class Rows(ABC):
    """A data set before anything is made of it."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> RowData: ...

    def __iter__(self) -> Iterator[RowData]:
        return (self[index] for index in range(len(self)))

    @abstractmethod
    def location(self, index: int) -> str:
        """Return where the row stands, for people: `train.jsonl:17`."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash that changes with the content."""


def part_of(ends: Sequence[int], index: int) -> tuple[int, int]:
    """Return which of several parts end to end an index lies in, and where in there; `ends` are those of the parts."""
    number = bisect_right(ends, index)
    return number, index - (ends[number - 1] if number else 0)


class ListRows(Rows):
    """Rows that are in memory: a JSON array, a CSV file, a list of dicts."""

    def __init__(
        self, rows: Sequence[Any], name: str, lines: Sequence[int] | None = None, fingerprint: str | None = None
    ) -> None:
        self._rows = rows
        self._name = name
        self._lines = lines
        self._fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> RowData:
        row = as_row(self._rows[index], self.location(index))
        if is_deeper(row, DEPTH):
            raise DataError(f"{self.location(index)}: the row is nested more than {DEPTH} levels deep.")
        return row

    def location(self, index: int) -> str:
        return f"{self._name}:{self._lines[index]}" if self._lines else f"{self._name}, row {index + 1}"

    def fingerprint(self) -> str:
        if self._fingerprint is not None:
            return self._fingerprint
        digest = xxhash.xxh3_128()
        for row in self:
            digest.update(json.dumps(row, sort_keys=True, default=repr).encode())
        return digest.hexdigest()


class Chained(Rows):
    """Several end to end: the files of a folder."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> RowData:
        number, local = part_of(self._ends, index)
        return self._parts[number][local]

    def location(self, index: int) -> str:
        number, local = part_of(self._ends, index)
        return self._parts[number].location(local)

    def fingerprint(self) -> str:
        return xxhash.xxh3_128(" ".join(part.fingerprint() for part in self._parts).encode()).hexdigest()


def as_row(value: object, location: str) -> RowData:
    """Return a row as a dict; raises `DataError` unless it is a mapping from names to values."""
    if not isinstance(value, Mapping):
        raise DataError(f"{location}: a row must be an object with named columns, not {json_kind(value)}.")
    for name in value:
        if type(name) is not str:
            raise DataError(f"{location}: column names must be strings, not {type(name).__name__}.")
    return dict(value)


def first_line(error: BaseException) -> str:
    """Return what an error of another library says, shortened to one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
