"""Tables that arrow reads: Parquet files, and the arrow files of folders that `datasets` saved.

Such a file can say little and mean much: three kilobytes that unpack to three gigabytes. So one group of rows is held
at a time, with every text kept once however often it appears, and a group that unpacks to far more than its size is
refused.

Folders are read without `datasets`: what they say about themselves is not believed.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import accumulate
from pathlib import Path
from typing import Any

from swift.data.sources.rows import Chained, RowData, Rows, first_line, part_of
from swift.data.sources.unchanged_files import SteadyFile
from swift.errors import DataError, SwiftError
from swift.untrusted import inside, read_json_object, shown

UNPACKED = 1 << 30
"""Bytes to which a group of rows may unpack, whatever its size in the file."""
RATIO = 100
"""How many times its size in the file it may unpack to beyond that."""
ROW = 64 << 20
"""Bytes of one row."""
_VALUES = 1 << 27
"""Values in a group of rows of one column, with those in lists."""
_WINDOW = 256
"""Rows that are made Python objects at a time."""


class TableRows(Rows):
    """Rows of a table of which one group is held in memory at a time."""

    def __init__(self, file: SteadyFile, sizes: list[int]) -> None:
        self._file = file
        self._ends = list(accumulate(sizes))
        self._number = -1
        self._group: Any = None
        self._window: tuple[int, list[RowData]] = (-1, [])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> RowData:
        try:
            return self._row(*part_of(self._ends, index))
        except SwiftError:
            raise
        except Exception as error:  # arrow's own, and Python's for values that it cannot hold
            raise DataError(f"{self.location(index)} cannot be read: {first_line(error)}") from None

    def location(self, index: int) -> str:
        return f"{self._file.name}, row {index + 1}"

    def fingerprint(self) -> str:
        return self._file.fingerprint()

    @abstractmethod
    def _read_group(self, number: int) -> Any:
        """Return a group of rows as an arrow table."""

    def _row(self, number: int, local: int) -> RowData:
        if number != self._number:
            self._group, self._number, self._window = None, number, (-1, [])
            self._group = self._read_group(number)
        at, rows = self._window
        if not (at >= 0 and at <= local < at + len(rows)):
            at = local - local % _WINDOW
            part = self._group.slice(at, _WINDOW)
            if _unpacked(part) > ROW:
                at, part = local, self._group.slice(local, 1)
                if (size := _unpacked(part)) > ROW:
                    location = self.location(self._ends[number] - self._group.num_rows + local)
                    raise DataError(f"{location} unpacks to {size:,} bytes; a row has {ROW:,} at most.")
            self._window = at, part.to_pylist()
        return self._window[1][local - self._window[0]]


class ParquetRows(TableRows):
    """A Parquet file."""

    def __init__(self, file: SteadyFile) -> None:
        import pyarrow.parquet

        try:
            about = pyarrow.parquet.read_metadata(file.as_file())
            strings = [
                column.path
                for column in map(about.schema.column, range(about.num_columns))
                if column.physical_type == "BYTE_ARRAY"
            ]
            self._reader = pyarrow.parquet.ParquetFile(file.as_file(), metadata=about, read_dictionary=strings)
            names = list(self._reader.schema_arrow.names)
        except SwiftError:
            raise
        except Exception as error:  # whatever arrow and its layers raise for what is not Parquet
            raise DataError(f"{file.name} is not a readable Parquet file: {first_line(error)}") from None
        check_names(names, file.name)
        super().__init__(file, [about.row_group(number).num_rows for number in range(about.num_row_groups)])

    def _read_group(self, number: int) -> Any:
        about = self._reader.metadata.row_group(number)
        columns = [about.column(index) for index in range(about.num_columns)]
        packed = sum(max(0, column.total_compressed_size) for column in columns)
        _check_size(self._file.name, sum(column.total_uncompressed_size for column in columns), packed)
        if any(column.num_values > _VALUES for column in columns):
            raise DataError(f"{self._file.name}: a group of rows has more than {_VALUES:,} values in a column.")
        table = self._reader.read_row_group(number, use_threads=False)
        _check_size(self._file.name, _unpacked(table), packed)
        return table


class ArrowRows(TableRows):
    """An arrow file as `datasets` writes it: a stream of batches."""

    def __init__(self, file: SteadyFile) -> None:
        import pyarrow.ipc

        self._positions: list[int] = []
        sizes = []
        reader = pyarrow.PythonFile(file.as_file())
        try:
            self._schema = pyarrow.ipc.read_schema(pyarrow.ipc.read_message(reader))
            while (at := reader.tell()) < file.size:
                try:
                    message = pyarrow.ipc.read_message(reader)
                except EOFError:  # the mark at the end
                    break
                batch = pyarrow.ipc.read_record_batch(message, self._schema)
                _check_size(file.name, _unpacked(batch), message.body.size)
                self._positions.append(at)
                sizes.append(batch.num_rows)
        except SwiftError:
            raise
        except Exception as error:  # whatever arrow and its layers raise for what is not arrow's
            raise DataError(f"{file.name} is not a readable arrow file: {first_line(error)}") from None
        check_names(list(self._schema.names), file.name)
        super().__init__(file, sizes)

    def _read_group(self, number: int) -> Any:
        import pyarrow.ipc

        reader = pyarrow.PythonFile(self._file.as_file())
        reader.seek(self._positions[number])
        batch = pyarrow.ipc.read_record_batch(pyarrow.ipc.read_message(reader), self._schema)
        return pyarrow.Table.from_batches([batch])


def _check_size(file: str, unpacked: int, packed: int) -> None:
    if unpacked > max(UNPACKED, RATIO * packed):
        raise DataError(
            f"{file} unpacks to too much: a group of rows has {packed:,} bytes in the file, and {unpacked:,} unpacked.",
            hint="If that is intended, write it with smaller groups of rows (row_group_size=1000).",
        )


def check_names(names: list[str], file: str) -> None:
    """Raise `DataError` where two columns have one name: nobody could say which of them is meant."""
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise DataError(f"{file} has two columns of the name {twice[:200]!r}.", hint="Rename or remove one of them.")


def _unpacked(data: Any) -> int:
    """Return the bytes that a table or a column has when each text is written out where it appears."""
    import pyarrow
    import pyarrow.compute

    if isinstance(data, pyarrow.Table):
        return sum(_unpacked(chunk) for column in data.columns for chunk in column.chunks)
    if isinstance(data, pyarrow.RecordBatch):
        return sum(map(_unpacked, data.columns))
    types, kind = pyarrow.types, data.type
    if types.is_dictionary(kind):
        lengths = pyarrow.compute.binary_length(data.dictionary)
        return int(pyarrow.compute.sum(lengths.take(data.indices)).as_py() or 0) + int(data.indices.nbytes)
    if types.is_struct(kind):
        return sum(map(_unpacked, data.flatten()))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) or types.is_map(kind):
        return _unpacked(data.flatten())
    return int(data.nbytes)


def read_saved(folder: Path, split: str) -> Rows:
    """Return the rows of a saved data set, or of one split of several."""
    if (folder / "dataset_dict.json").exists():
        folder = _pick_split(folder, split)
    about = folder / "state.json"
    state = read_json_object(about, DataError)
    if state.get("_indices_files"):
        raise DataError(
            f"{shown(folder)} was saved by an old version of datasets, which stored a selection of rows separately.",
            hint="Load it and save it again: load_from_disk(...).flatten_indices().save_to_disk(...)",
        )
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise DataError(f"{shown(about)} should list the files of the data set under '_data_files'.")
    files = [inside(folder, each.get("filename"), DataError, source=shown(about)) for each in listed]
    parts = [ArrowRows(SteadyFile(file)) for file in files]
    return parts[0] if len(parts) == 1 else Chained(parts)


def _pick_split(folder: Path, split: str) -> Path:
    """Return the folder of the split that was asked for, or of the only one there is."""
    about = folder / "dataset_dict.json"
    splits = read_json_object(about, DataError).get("splits")
    if not isinstance(splits, list) or not splits or not all(isinstance(name, str) for name in splits):
        raise DataError(f"{shown(about)} should list the splits of the data set under 'splits'.")
    name = split if split in splits else splits[0]
    if name != split and len(splits) > 1:
        listed = ", ".join(sorted(splits))[:500]
        raise DataError(f"The data set {shown(folder)} has no split {split!r}, only {listed}.")
    return inside(folder, name, DataError, source=shown(about))
