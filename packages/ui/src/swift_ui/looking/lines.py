"""Incremental reader of `logging.jsonl`: columns of numbers, downsampled for a screen."""

from __future__ import annotations

import math
import os
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, cast

from pydantic_core import from_json

from swift.observers import LOGGING_FILE, NOT_CHARTED, charts_of
from swift.observers.lines import MEMORY, TIME_PARTS, Line
from swift.untrusted import open_regular
from swift_ui.looking.index import NotFound, file_in

MOST_POINTS = 1500
"""Maximum number of points of a curve: more than a screen has columns of pixels."""
TOGETHER = 1 << 20
"""Bytes to parse at a time."""
LONG = 8 * TOGETHER
"""Size in bytes from which a few lines are shown before all are read."""
GLANCES, _A_GLANCE = 600, 4096
"""Number of offsets of a long file at which lines are read first, and bytes at each."""
_LAST_STEP = 1 << 53
"""Limit of integers that JavaScript represents exactly."""
_MISSING = math.nan
_ONLY_NEWEST = NOT_CHARTED - {*TIME_PARTS}
"""Values of a line without a curve: only the newest is kept."""


class RunLines:
    """The lines of one run as columns, updated on every read.

    A resumed run rewrites its file without the steps that it repeats: `generation` changes, and everything is read
    again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._forget()
        self.generation = ""

    def _forget(self) -> None:
        self.offset = 0
        self.steps = array("d")
        self.columns: dict[str, array[float]] = {}
        self._newest: dict[str, float] = {}
        self.first: Line = {}
        self.ranks: list[Mapping[str, Any]] = []
        self.ranks_step: int | None = None

    @classmethod
    def at_a_glance(cls, folder: Path) -> RunLines | None:
        """Return a few lines of a long run: both ends, and some at even distances; None for a short run."""
        found = cls(folder)
        with suppress(NotFound), open_regular(file_in(folder, LOGGING_FILE), NotFound) as file:
            size = file.seek(0, 2)
            if size > LONG:
                found._add(parsed(b"".join(_some_lines(file, size))))
                return found
        return None

    def update(self) -> list[Line]:
        """Read and return the lines that were added."""
        with self._lock:
            try:
                file = open_regular(file_in(self._folder, LOGGING_FILE), NotFound)
            except NotFound:
                self._forget()
                return []
            with file:
                return list(deque(self._read(file), MOST_POINTS))

    @property
    def position(self) -> str:
        """Return the file and the offset up to which its lines are known."""
        return f"{self.generation}-{self.offset}"

    @property
    def last(self) -> dict[str, float]:
        """Return the newest value of every number."""
        newest = {
            name: next((value for value in reversed(column) if value == value), None)
            for name, column in self.columns.items()
        }
        return {**self._newest, **{name: value for name, value in newest.items() if value is not None}}

    def skip(self) -> None:
        """Skip all lines that the file has, without reading them."""
        with self._lock, suppress(NotFound), open_regular(file_in(self._folder, LOGGING_FILE), NotFound) as file:
            self.generation = str(os.fstat(file.fileno()).st_ino)
            self.offset = _end_of_lines(file)

    def resume(self, position: str) -> bool:
        """Continue at an earlier `position`; return False if it is from another file."""
        generation, _, offset = position.partition("-")
        with self._lock, suppress(NotFound), open_regular(file_in(self._folder, LOGGING_FILE), NotFound) as file:
            found = os.fstat(file.fileno())
            valid = str(found.st_ino) == generation and offset.isdecimal() and len(offset) < 20
            if valid and int(offset) <= found.st_size:
                self.generation, self.offset = generation, int(offset)
                return True
        return False

    def _read(self, file: BinaryIO) -> Iterator[Line]:
        found = os.fstat(file.fileno())
        if self.generation != str(found.st_ino) or found.st_size < self.offset:
            self._forget()
            self.generation = str(found.st_ino)
        file.seek(self.offset)
        while chunk := file.read(TOGETHER):
            whole = chunk.rfind(b"\n") + 1
            if not whole:  # a line of more than a megabyte, or an incomplete one
                chunk += file.readline(LONG)
                whole = chunk.rfind(b"\n") + 1
                if not whole:
                    if len(chunk) > LONG:  # no run writes such lines: continue behind it
                        self.offset = max(self.offset, _end_of_lines(file))
                    return
            self.offset += whole
            lines = parsed(chunk[:whole])
            self._add(lines)
            yield from lines
            file.seek(self.offset)

    def _add(self, lines: Sequence[Line]) -> None:
        rows = [line for line in lines if isinstance(line.get("step"), int) and abs(line["step"]) < _LAST_STEP]
        if not rows:
            return
        before = len(self.steps)
        self.steps.extend(row["step"] for row in rows)
        names = set().union(*rows)
        self._newest |= _newest(rows, names & _ONLY_NEWEST)
        for name in names - _ONLY_NEWEST:
            values = _numbers([row.get(name) for row in rows])
            if name not in self.columns:
                if all(value != value for value in values):
                    continue
                self.columns[name] = array("d", [_MISSING]) * before
            self.columns[name].extend(values)
        for column in self.columns.values():
            column.extend([_MISSING] * (len(self.steps) - len(column)))
        self.first = self.first or rows[0]
        measured = next((row for row in reversed(rows) if isinstance(row.get("ranks"), list)), None)
        if measured is not None:
            self.ranks = [each for each in measured["ranks"] if isinstance(each, dict)]
            self.ranks_step = measured["step"]

    def series(self, *, first: float = -math.inf, last: float = math.inf, most: int = MOST_POINTS) -> dict[str, Any]:
        """Return the points of every column with a curve, [steps, values], for the steps in a range."""
        shown = {series["name"] for chart in self.charts() for series in chart["series"]}
        with self._lock:
            low, high = bisect_left(self.steps, first), bisect_right(self.steps, last)
            steps = self.steps[low:high]
            return {
                name: thinned(steps, column[low:high], most) for name, column in self.columns.items() if name in shown
            }

    def charts(self, peak: float | None = None) -> list[dict[str, Any]]:
        """Return the charts of the columns, as in the report."""
        names: Line = dict.fromkeys(self.columns, 1.0)
        if MEMORY in self.columns and not any(value > 0 for value in self.columns[MEMORY]):
            names[MEMORY] = 0.0
        return charts_of([names], peak)


def _end_of_lines(file: BinaryIO) -> int:
    """Return the offset behind the last complete line, if that is near the end of the file."""
    size = file.seek(0, 2)
    file.seek(max(0, size - TOGETHER))
    end = file.read(size - file.tell())
    return size - len(end) + end.rfind(b"\n") + 1


def _some_lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield complete lines: the first, the last, and some at even distances between them."""
    for number in range(GLANCES + 1):
        offset = (size - _A_GLANCE) * number // GLANCES
        file.seek(offset)
        read = file.read(_A_GLANCE)
        begin = read.find(b"\n") + 1 if offset else 0
        end = read.find(b"\n", begin) if number < GLANCES else read.rfind(b"\n")
        if end > begin:
            yield read[begin : end + 1]


def _newest(rows: Sequence[Line], names: Iterable[str]) -> dict[str, float]:
    found = {name: next((row[name] for row in reversed(rows) if row.get(name) is not None), None) for name in names}
    numbers = {name: number(value) for name, value in found.items()}
    return {name: each for name, each in numbers.items() if each == each}


def parsed(text: bytes) -> list[Line]:
    """Return the JSON objects of complete lines; other lines are skipped."""
    lines = text.splitlines()
    try:
        found = from_json(b"[" + b",".join(line for line in lines if line) + b"]", cache_strings="keys")
    except ValueError:
        found = [_parsed(line) for line in lines]
    return [each for each in found if isinstance(each, dict)]


def _parsed(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return None


def thinned(steps: Sequence[float], values: Sequence[float], most: int) -> list[list[float]]:
    """Return [steps, values] of at most `most` points: both ends, and the lowest and highest of each stretch.

    A peak of one step stays a peak. Steps without a value are left out.
    """
    total = sum(values)
    if total != total:
        known = [index for index, value in enumerate(values) if value == value]
        steps, values = [steps[index] for index in known], [values[index] for index in known]
    indices: Iterable[int] = range(len(values)) if len(values) <= most else _extremes(values, most)
    chosen = list(indices)
    return [[int(steps[index]) for index in chosen], [_rounded(values[index]) for index in chosen]]


def _extremes(values: Sequence[float], most: int) -> Iterator[int]:
    """Yield indices in order: both ends, and the lowest and highest value of each stretch."""
    stretches = (most - 2) // 2
    inner = len(values) - 2
    yield 0
    for index in range(stretches):
        start, end = 1 + index * inner // stretches, 1 + (index + 1) * inner // stretches
        stretch = values[start:end]
        low, high = start + stretch.index(min(stretch)), start + stretch.index(max(stretch))
        yield from (low,) if low == high else sorted((low, high))
    yield len(values) - 1


def _numbers(values: Sequence[object]) -> Sequence[float]:
    """Return the numbers, with NaN for anything else."""
    if not isinstance(values[0], bool):
        try:
            numbers = array("d", cast("list[float]", values))  # raises TypeError for other values
        except (TypeError, OverflowError):
            pass
        else:
            if math.isfinite(sum(numbers)):
                return numbers
    return [number(value) for value in values]


def number(value: object) -> float:
    """Return a finite number; NaN for anything else, such as strings, lists and booleans."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _MISSING
    try:
        found = float(value)
    except OverflowError:
        return _MISSING
    return found if math.isfinite(found) else _MISSING


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")
