"""Rows of a data set before anything is made of them: named columns, and a location for messages."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import xxhash

from swift.errors import DataError
from swift.untrusted import DEPTH, is_deeper, json_kind

RowData = dict[str, Any]


class Rows(Protocol):
    """A data set before anything is made of it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> RowData: ...

    def __iter__(self) -> Iterator[RowData]: ...

    def location(self, index: int) -> str:
        """Return where the row stands, for people: `train.jsonl:17`."""

    def fingerprint(self) -> str:
        """Return a hash that changes with the content."""


class ListRows:
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

    def __iter__(self) -> Iterator[RowData]:
        return (self[index] for index in range(len(self)))

    def location(self, index: int) -> str:
        return f"{self._name}:{self._lines[index]}" if self._lines else f"{self._name}, row {index + 1}"

    def fingerprint(self) -> str:
        if self._fingerprint is not None:
            return self._fingerprint
        digest = xxhash.xxh3_128()
        for row in self:
            digest.update(json.dumps(row, sort_keys=True, default=repr).encode())
        return digest.hexdigest()


class Chained:
    """Several end to end: the files of a folder."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self._ends: list[int] = []
        for part in parts:
            self._ends.append(len(self) + len(part))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> RowData:
        part, local = self._find(index)
        return part[local]

    def __iter__(self) -> Iterator[RowData]:
        for part in self._parts:
            yield from part

    def location(self, index: int) -> str:
        part, local = self._find(index)
        return part.location(local)

    def fingerprint(self) -> str:
        return xxhash.xxh3_128(" ".join(part.fingerprint() for part in self._parts).encode()).hexdigest()

    def _find(self, index: int) -> tuple[Rows, int]:
        part = bisect_right(self._ends, index)
        return self._parts[part], index - (self._ends[part - 1] if part else 0)


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
