"""Files with one JSON object per line."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator

import numpy as np

from swift.data.sources.rows import RowData, as_row
from swift.data.sources.unchanged_files import SteadyFile
from swift.errors import DataError
from swift.untrusted import DEPTH, is_deeper, parse_json

LONGEST = 64 << 20
"""Bytes of a row: no sample of this length fits into any model, and reading it takes many times its size."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPACES = b" \t\r\n\v\f"


class JsonLines:
    """A file with one JSON object per line. Nothing but the places of the lines is held in memory."""

    def __init__(self, file: SteadyFile) -> None:
        self._file = file
        if file.size:
            file.refuse_other_kinds()
        starts, ends, firsts = _lines(file)
        if long := np.flatnonzero(ends - starts > LONGEST).tolist():
            size = int(ends[long[0]] - starts[long[0]])
            raise DataError(f"{file.name}:{long[0] + 1}: the line has {size:,} bytes; a row has {LONGEST:,} at most.")
        written = ~_blank(file, starts, ends, firsts)
        self._starts = _packed(starts[written])
        self._ends = _packed(ends[written])
        self._numbers = None if written.all() else _packed(np.flatnonzero(written) + 1)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> RowData:
        line = self._file.read(self._starts[index], self._ends[index])
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError):
            row = self._parse_slowly(line, index)
        # Only a line with many brackets can be deep.
        if line.count(b"{") + line.count(b"[") > DEPTH and is_deeper(row, DEPTH):
            raise DataError(f"{self.place(index)}: the JSON is nested more than {DEPTH} levels deep.")
        return row if type(row) is dict else as_row(row, self.place(index))

    def __iter__(self) -> Iterator[RowData]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> str:
        return f"{self._file.name}:{self._numbers[index] if self._numbers else index + 1}"

    def fingerprint(self) -> str:
        return self._file.fingerprint()

    def _parse_slowly(self, line: bytes, index: int) -> object:
        """Parse a line that may be malformed, or begin with a byte order mark; raises `DataError` with the place."""
        place = self.place(index)
        try:
            text = line.removeprefix(_BYTE_ORDER_MARK).decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: not UTF-8 text (byte {error.start + 1} of the line).") from None
        return parse_json(text, place, DataError)


def _lines(file: SteadyFile) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where each line begins, where it ends without its line feed, and its first byte."""
    feeds, firsts = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.uint8)]
    offset, begins = 0, True
    for block in file.blocks():
        data = np.frombuffer(block, dtype=np.uint8)
        found = np.flatnonzero(data == ord("\n"))
        if begins:
            firsts.append(data[:1])
        begins = bool(len(found)) and int(found[-1]) + 1 == len(data)
        firsts.append(data[found[: len(found) - begins] + 1])
        feeds.append(found + offset)
        offset += len(data)
    ends = np.concatenate(feeds)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends + 1])
    if begins:
        starts = starts[:-1]
    else:
        ends = np.append(ends, file.size)
    return starts, ends, np.concatenate(firsts)


def _blank(file: SteadyFile, starts: np.ndarray, ends: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Return which lines hold nothing but spaces."""
    spaces: np.ndarray = np.isin(firsts, np.frombuffer(_SPACES, dtype=np.uint8))
    blank: np.ndarray = spaces & (ends - starts <= 1)
    for index in np.flatnonzero(spaces & ~blank).tolist():
        blank[index] = file.read(int(starts[index]), int(ends[index])).isspace()
    return blank


def _packed(numbers: np.ndarray) -> array[int]:
    packed = array("q")
    packed.frombytes(np.asarray(numbers, dtype=np.int64).tobytes())
    return packed
