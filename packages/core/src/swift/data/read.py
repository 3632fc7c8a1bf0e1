"""Rows of data sets: local files and folders, and Python objects, each with a place to point at in messages."""

from __future__ import annotations

import csv
import io
import json
import mmap
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import xxhash

from swift.data.spec import SUFFIXES, Source
from swift.errors import DataError

RowData = dict[str, Any]


class Rows(Protocol):
    """A data set before anything is made of it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> RowData: ...

    def __iter__(self) -> Iterator[RowData]: ...

    def place(self, index: int) -> str:
        """Where the row stands, for people: `train.jsonl:17`."""

    def fingerprint(self) -> str:
        """Changes when the content changes."""


class JsonLines:
    """A file with one JSON object per line. Nothing but the places of the lines is held in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts = array("q")
        self._numbers = array("q")
        self._size = path.stat().st_size
        start = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    self._starts.append(start)
                    self._numbers.append(number)
                start += len(line)
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self._size else b""

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> RowData:
        end = self._starts[index + 1] if index + 1 < len(self) else self._size
        return parse_line(self._bytes[self._starts[index] : end], self.place(index))

    def __iter__(self) -> Iterator[RowData]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> str:
        return f"{self._path}:{self._numbers[index]}"

    def fingerprint(self) -> str:
        return file_hash(self._path)


class ListRows:
    """Rows that are in memory: a JSON array, a CSV file, a list of dicts."""

    def __init__(self, rows: Sequence[Any], name: str, lines: Sequence[int] | None = None) -> None:
        self._rows = rows
        self._name = name
        self._lines = lines

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> RowData:
        return as_row(self._rows[index], self.place(index))

    def __iter__(self) -> Iterator[RowData]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> str:
        return f"{self._name}:{self._lines[index]}" if self._lines else f"{self._name}, row {index + 1}"

    def fingerprint(self) -> str:
        digest = xxhash.xxh3_128()
        for row in self._rows:
            digest.update(json.dumps(row, sort_keys=True, default=repr).encode())
        return digest.hexdigest()


class ParquetRows:
    """A Parquet file, memory-mapped by arrow."""

    def __init__(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self._path = path
        try:
            self._table = pyarrow.parquet.read_table(path, memory_map=True)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path} is not a readable Parquet file: {first_line(error)}") from error

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> RowData:
        return as_row(self._table.slice(index, 1).to_pylist()[0], self.place(index))

    def __iter__(self) -> Iterator[RowData]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> str:
        return f"{self._path}, row {index + 1}"

    def fingerprint(self) -> str:
        return file_hash(self._path)


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

    def place(self, index: int) -> str:
        part, local = self._find(index)
        return part.place(local)

    def fingerprint(self) -> str:
        return xxhash.xxh3_128(" ".join(part.fingerprint() for part in self._parts).encode()).hexdigest()

    def _find(self, index: int) -> tuple[Rows, int]:
        part = bisect_right(self._ends, index)
        return self._parts[part], index - (self._ends[part - 1] if part else 0)


def read_path(source: Source) -> Rows:
    """The rows of a local file or folder."""
    path = Path(source.location)
    if path.is_dir() and ((path / "state.json").exists() or (path / "dataset_dict.json").exists()):
        from swift.data.hub import read_saved

        return read_saved(source)
    files = _files(path) if path.is_dir() else [path]
    parts = [_read_file(file) for file in files]
    rows = parts[0] if len(parts) == 1 else Chained(parts)
    if len(rows) == 0:
        raise DataError(f"The data set {source.text!r} is empty.")
    return rows


def _files(folder: Path) -> list[Path]:
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in SUFFIXES
        and path.name != "dataset_info.json"
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise DataError(f"The folder {str(folder)!r} holds no {', '.join(SUFFIXES)} file.")
    return files


def _read_file(path: Path) -> Rows:
    try:
        match path.suffix:
            case ".jsonl":
                return JsonLines(path)
            case ".json":
                return _read_json(path)
            case ".csv":
                return _read_csv(path)
            case ".parquet":
                return ParquetRows(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    raise DataError(f"{path} cannot be read: its name should end in {', '.join(SUFFIXES)}.")


def _read_json(path: Path) -> Rows:
    """An array of objects, or, as many `.json` files are, one object per line."""
    text = _text(path)
    if not text.lstrip().startswith("["):
        return JsonLines(path)
    try:
        return ListRows(json.loads(text), str(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: malformed JSON: {error.msg} (column {error.colno}).") from error


def _read_csv(path: Path) -> Rows:
    csv.field_size_limit(2**31 - 1)
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), restkey="", strict=True)
    rows, lines = [], []
    try:
        for row in reader:
            if "" in row or None in row.values():
                raise DataError(
                    f"{path}:{reader.line_num}: the number of fields differs from the header's "
                    f"({len(reader.fieldnames or ())})."
                )
            # An empty field says nothing, like a missing key of a JSON object.
            rows.append({name: value for name, value in row.items() if value != ""})
            lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: malformed CSV: {error}.") from error
    return ListRows(rows, str(path), lines)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text (byte {error.start}).") from error


def parse_line(line: bytes, place: str) -> RowData:
    """One line of a JSONL file."""
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not UTF-8 text (byte {error.start} of the line).") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: malformed JSON: {error.msg} (column {error.colno}).") from error
    return as_row(value, place)


def as_row(value: object, place: str) -> RowData:
    """Checks that a row is a mapping from names to values."""
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: a row should be an object with named columns, but this is a {type(value).__name__}.")
    return dict(value)


def file_hash(path: Path) -> str:
    """Of the content, not of the name or the time."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def first_line(error: BaseException) -> str:
    """What an error of another library says, shortened to one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
