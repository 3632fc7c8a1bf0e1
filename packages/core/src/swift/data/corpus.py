"""All data sets of a run end to end: row i of the whole, understood, and where it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from swift.config.sections import DataSection
from swift.data.conversation import STANDARD_TAGS, RoleTags, Unusable
from swift.data.encodings import Encoding
from swift.data.formats import Sample, check_columns, rename
from swift.data.sources.read import read_path
from swift.data.sources.rows import ListRows, RowData, Rows, Source, part_of
from swift.data.sources.spec import by_index, parse_source
from swift.data.store import hash_of
from swift.data.store_index import INDEX_FILE
from swift.errors import DataError
from swift.files import user_cache
from swift.untrusted import shown

_LOOKED_AT = 20


@dataclass(frozen=True)
class DatasetPart:
    """One data set, and how its columns and roles are called."""

    name: str
    rows: Rows
    count: int
    """Rows that are used: the first `count`."""
    columns: dict[str, str]
    tags: RoleTags = STANDARD_TAGS
    root: Path | None = None
    """The folder that paths of images are taken from."""

    def understand(self, row: RowData, encoding: Encoding, location: str) -> Sample:
        """Return what a row means; raise `Unusable`."""
        return encoding.understand(rename(row, self.columns, location), location, self.tags, self.root)

    def check_format(self, row: RowData, encoding: Encoding, location: str) -> None:
        """Refuse the data set when this row, its first, has no known columns."""
        encoding.check_format(rename(row, self.columns, location), location, self.tags)


class Corpus:
    """Data sets end to end, for one encoding."""

    def __init__(self, parts: Sequence[DatasetPart], encoding: Encoding, *, check: bool = True) -> None:
        """Take data sets; unless `check` is false, each must begin with a row that the encoding understands."""
        self.parts = list(parts)
        self.encoding = encoding
        self._ends = list(accumulate(part.count for part in parts))
        for part in parts if check else ():
            part.check_format(part.rows[0], encoding, part.rows.location(0))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def counts(self, rows: range) -> list[int]:
        """Return how many of some rows belong to each data set."""
        starts = [0, *self._ends]
        return [len(range(max(rows.start, start), min(rows.stop, end))) for start, end in pairwise(starts)]

    def part_of(self, index: int) -> tuple[int, int]:
        """Return which data set a row belongs to, and its index in there."""
        return part_of(self._ends, index)

    def location(self, index: int) -> str:
        """Return where a row stands, for people."""
        number, local = self.part_of(index)
        return self.parts[number].rows.location(local)

    def row(self, index: int) -> RowData:
        """Return a row as it was read."""
        number, local = self.part_of(index)
        return self.parts[number].rows[local]

    def sample(self, index: int) -> Sample:
        """Return a row, understood; raises `Unusable`."""
        number, local = self.part_of(index)
        part = self.parts[number]
        return part.understand(part.rows[local], self.encoding, part.rows.location(local))

    def sample_after(self, index: int) -> Sample:
        """Return the next row that can be understood, going on at the start after the end."""
        for step in range(1, len(self) + 1):
            try:
                return self.sample((index + step) % len(self))
            except Unusable:
                continue
        raise Unusable("nothing to compare with", "no other row is understood")

    def fingerprint(self) -> str:
        """Return a hash of the content and of how it is read."""
        return hash_of(*(part for each in self.parts for part in _fingerprint(each)))


def open_corpus(names: Sequence[str], section: DataSection, encoding: Encoding) -> Corpus:
    """Return the data sets that `data.train` or `data.validation` names."""
    return Corpus(open_parts(names, section), encoding)


def open_parts(names: Sequence[str], section: DataSection) -> list[DatasetPart]:
    """Open data sets without parsing their rows."""
    parts = [_open(on_this_machine(parse_source(name), section), section) for name in names]
    _check_columns(parts, section)
    return parts


def on_this_machine(source: Source, section: DataSection) -> Source:
    """Return the local copy of a data set behind a URL; any other as it is."""
    if source.kind != "url":
        return source
    from swift.remote.fetch import fetch

    copy = fetch(
        source.location,
        cache_folder(section),
        error=DataError,
        last=INDEX_FILE,
        hint="Name another folder for copies: --data.cache FOLDER",
    )
    return by_index(replace(source, kind="path", location=str(copy)))


def cache_folder(section: DataSection) -> Path:
    """Return where tokenised data, and copies of data behind URLs, are kept."""
    return user_cache() / "tokenised" if section.cache is None else section.cache


def corpus_of(rows: Any, name: str, section: DataSection, encoding: Encoding) -> Corpus:
    """Rows that are in memory already: a list of dicts, or a `datasets.Dataset`."""
    readable = ListRows(rows, name, fingerprint=getattr(rows, "_fingerprint", None))  # which a `datasets.Dataset` has
    if len(readable) == 0:
        raise DataError(f"The {name} is empty.")
    part = DatasetPart(name, readable, len(readable), dict(section.columns), root=section.media_root)
    _check_columns([part], section)
    return Corpus([part], encoding)


def stream_rows(
    names: Sequence[str], section: DataSection, opened: dict[str, DatasetPart]
) -> Iterator[tuple[DatasetPart, str, RowData]]:
    """Yield all rows once, in order, without knowing how many there are: the data set, the location and the row.

    Local data sets are opened into `opened` or taken from there: every epoch reads the same state of their files.
    """
    for name in names:
        source = on_this_machine(parse_source(name), section)
        if source.kind == "hf":
            yield from _stream_hub(source, section)
            continue
        part = opened.get(name) or opened.setdefault(name, _open(source, section))
        for index in range(part.count):
            yield part, part.rows.location(index), part.rows[index]


def _open(source: Source, section: DataSection) -> DatasetPart:
    rows: Rows
    if source.kind == "path":
        rows = read_path(source)
    else:
        from swift.data.sources.hub import read_hub

        rows = read_hub(source)
    return _part(source, rows, section)


def _part(source: Source, rows: Rows, section: DataSection) -> DatasetPart:
    count = min(len(rows), source.limit or len(rows))
    root = section.media_root
    if root is None and source.kind == "path":
        path = Path(source.location).absolute()
        root = path if path.is_dir() else path.parent
    return DatasetPart(_shown(source), rows, count, {**source.columns, **section.columns}, source.tags, root)


def _check_columns(parts: Sequence[DatasetPart], section: DataSection) -> None:
    """Rows of JSON need not all have the same columns: a few of each data set are looked at."""
    rows = [part.rows[index] for part in parts for index in range(min(part.count, _LOOKED_AT))]
    check_columns(section.columns, rows)


def _stream_hub(source: Source, section: DataSection) -> Iterator[tuple[DatasetPart, str, RowData]]:
    from swift.data.sources.hub import stream_hub

    part = _part(source, ListRows([], source.text), section)
    for index, row in enumerate(stream_hub(source)):
        if index == source.limit:
            return
        yield part, f"{source.text}, row {index + 1}", row


def _shown(source: Source) -> str:
    """Return the name in reports: what was typed, and what it stands for where that is something else."""
    same = source.location in source.text or Path(source.location).name in source.text
    return shown(source.text if same else f"{source.text} ({source.location})")


def _fingerprint(part: DatasetPart) -> tuple[str, str, str]:
    tags = [part.tags.role_keys, part.tags.content_keys, sorted(part.tags.roles.items())]
    return part.rows.fingerprint(), str(part.count), json.dumps([sorted(part.columns.items()), tags])
