"""Rows of data sets that lie on this machine: files, and folders of them."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from swift.data.sources.json_lines import JsonLines, TextLines
from swift.data.sources.rows import Chained, ListRows, Rows, Source
from swift.data.sources.spec import SUFFIXES, TABLES
from swift.data.sources.unchanged_files import SteadyFile
from swift.data.store_index import is_tokenised
from swift.errors import DataError
from swift.untrusted import parse_json, shown

WHOLE = 4 << 30
"""Bytes of a file that is read as a whole: a JSON array, a CSV file."""


def read_path(source: Source) -> Rows:
    """Return the rows of a local file or folder."""
    path = Path(source.location)
    if is_tokenised(path):
        raise DataError(
            f"{shown(path)} holds tokenised data, and here rows are read one by one.",
            hint="Name the data set that it was built from. Tokenised data is for training: swift sft --dataset FOLDER",
        )
    if path.is_dir() and any((path / name).exists() for name in ("state.json", "dataset_dict.json")):
        from swift.data.sources.arrow_tables import read_saved

        rows = read_saved(path, source.split)
    else:
        parts = [read_file(file) for file in (_files(path) if path.is_dir() else [path])]
        rows = parts[0] if len(parts) == 1 else Chained(parts)
    if len(rows) == 0:
        raise DataError(f"The data set '{shown(source.text)}' is empty.")
    return rows


def _files(folder: Path) -> list[Path]:
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in TABLES
        and path.name != "dataset_info.json"
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise DataError(f"The folder '{shown(folder)}' holds no {', '.join(TABLES)} file.")
    return files


def read_file(path: Path) -> Rows:
    """Return the rows of a local file, by the ending of its name."""
    if path.suffix not in SUFFIXES:
        raise DataError(f"{shown(path)} cannot be read: its name should end in {', '.join(SUFFIXES)}.")
    file = SteadyFile(path)
    try:
        match path.suffix:
            case ".json":
                return _read_json(file)
            case ".txt":
                return TextLines(file)
            case ".csv":
                return _read_csv(file)
            case ".parquet":
                from swift.data.sources.arrow_tables import ParquetRows

                return ParquetRows(file)
        return JsonLines(file)
    except MemoryError:
        raise DataError(
            f"{file.name} does not fit into memory.", hint="Write it as JSONL, which is read in chunks."
        ) from None


def _read_json(file: SteadyFile) -> Rows:
    """Read an array of objects, or, as many `.json` files are, one object per line."""
    head = file.read(0, min(file.size, 4096)).removeprefix(b"\xef\xbb\xbf")
    if not head.lstrip().startswith(b"["):
        return JsonLines(file)
    return ListRows(parse_json(file.text(WHOLE), file.name, DataError), file.name, fingerprint=file.fingerprint())


def _read_csv(file: SteadyFile) -> Rows:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(file.text(WHOLE), newline=""), strict=True)
    header: list[str] = []
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    while True:
        begin = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise DataError(f"{file.name}:{begin}: malformed CSV: {error}, in the row that begins here.") from None
        if not fields:
            continue
        if not header:
            header = _header(fields, file.name)
            continue
        if len(fields) != len(header):
            raise DataError(
                f"{file.name}:{reader.line_num}: the number of fields ({len(fields)}) differs from the header's "
                f"({len(header)})."
            )
        # An empty field says nothing, like a missing key of a JSON object; nor does a column without a name.
        rows.append({name: value for name, value in zip(header, fields, strict=True) if name and value})
        lines.append(reader.line_num)
    return ListRows(rows, file.name, lines, fingerprint=file.fingerprint())


def _header(names: list[str], file: str) -> list[str]:
    twice = next((name for index, name in enumerate(names) if name and name in names[:index]), None)
    if twice is not None:
        raise DataError(f"{file}:1: two columns have the name {twice[:200]!r}.", hint="Rename or remove one of them.")
    return names
