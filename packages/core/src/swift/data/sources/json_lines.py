"""Files with one row per line: JSON objects, or plain text."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from swift.data.sources.rows import RowData, Rows, as_row
from swift.data.sources.unchanged_files import SteadyFile
from swift.errors import DataError
from swift.untrusted import DEPTH, is_deeper, parse_json

LONGEST = 64 << 20
"""Bytes of a row: no sample of this length fits into any model, and reading it takes many times its size."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPACES = b" \t\r\n\v\f"


class JsonLines(Rows):
    """A file with one JSON object per line. No more is held in memory than where some of the lines begin."""

    def __init__(self, file: SteadyFile) -> None:
        self._file = file
        if file.size:
            file.refuse_other_kinds()
        self._firsts, self._starts, self._numbers = array("q"), array("q"), array("q")
        """Of the first row that ends in a block: its index, where it begins, and the number of its line."""
        self._count = self._lines = 0
        for starts, ends, firsts in _lines(file):
            self._note(starts, ends, firsts)
        self._begin = self._end = 0
        self._window: list[tuple[int, bytes]] = []
        """The rows of one block: the numbers of their lines, and what they hold."""

    def _note(self, starts: np.ndarray, ends: np.ndarray, firsts: np.ndarray) -> None:
        """Note where the rows among some lines begin."""
        if long := np.flatnonzero(ends - starts > LONGEST).tolist():
            size, number = int(ends[long[0]] - starts[long[0]]), self._lines + long[0] + 1
            raise DataError(f"{self._file.name}:{number}: the line has {size:,} bytes; a row has {LONGEST:,} at most.")
        written = np.flatnonzero(~_blank(self._file, starts, ends, firsts))
        if len(written):
            self._firsts.append(self._count)
            self._starts.append(int(starts[written[0]]))
            self._numbers.append(self._lines + int(written[0]) + 1)
        self._count += len(written)
        self._lines += len(starts)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> RowData:
        line = self._row(index)[1]
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError):
            # It may be malformed, or begin with a byte order mark.
            row = parse_json(self._decoded(line, index), self.location(index), DataError)
        # Only a line with many brackets can be deep.
        if line.count(b"{") + line.count(b"[") > DEPTH and is_deeper(row, DEPTH):
            raise DataError(f"{self.location(index)}: the JSON is nested more than {DEPTH} levels deep.")
        return row if type(row) is dict else as_row(row, self.location(index))

    def _row(self, index: int) -> tuple[int, bytes]:
        """Return the number of a row's line, and what it holds."""
        if not self._begin <= index < self._end:
            if not 0 <= index < self._count:
                raise IndexError(index)
            block = bisect_right(self._firsts, index) - 1
            last = block + 1 == len(self._firsts)
            lines = self._file.read(self._starts[block], self._file.size if last else self._starts[block + 1])
            numbered = enumerate(lines.split(b"\n"), self._numbers[block])
            self._window = [(number, line) for number, line in numbered if line and not line.isspace()]
            self._begin, self._end = self._firsts[block], self._count if last else self._firsts[block + 1]
        return self._window[index - self._begin]

    def location(self, index: int) -> str:
        return f"{self._file.name}:{index + 1 if self._lines == self._count else self._row(index)[0]}"

    def fingerprint(self) -> str:
        return self._file.fingerprint()

    def _decoded(self, line: bytes, index: int) -> str:
        try:
            return line.removeprefix(_BYTE_ORDER_MARK).decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{self.location(index)}: not UTF-8 text (byte {error.start + 1} of the line).") from None


class TextLines(JsonLines):
    """A text file: each line that is not blank is a document, in the column 'text'."""

    def __getitem__(self, index: int) -> RowData:
        return {"text": self._decoded(self._row(index)[1], index).removesuffix("\r")}

    def fingerprint(self) -> str:
        return f"text {super().fingerprint()}"


def _lines(file: SteadyFile) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield, of the lines that end in each block, where they begin, where they end, and their first bytes."""
    offset = begin = first = 0
    for block in file.blocks():
        data = np.frombuffer(block, dtype=np.uint8)
        if begin == offset:
            first = int(data[0])
        ends = np.flatnonzero(data == ord("\n")) + offset
        if len(ends):
            starts = np.append(begin, ends[:-1] + 1)
            yield starts, ends, np.append(np.uint8(first), data[starts[1:] - offset])
            begin = int(ends[-1]) + 1
            first = int(data[begin - offset]) if begin < offset + len(data) else 0
        offset += len(data)
    if begin < offset:
        yield np.array([begin]), np.array([offset]), np.array([first], dtype=np.uint8)


def _blank(file: SteadyFile, starts: np.ndarray, ends: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Return which lines hold nothing but spaces."""
    spaces: np.ndarray = np.isin(firsts, np.frombuffer(_SPACES, dtype=np.uint8))
    blank: np.ndarray = spaces & (ends - starts <= 1)
    for index in np.flatnonzero(spaces & ~blank).tolist():
        blank[index] = file.read(int(starts[index]), int(ends[index])).isspace()
    return blank
