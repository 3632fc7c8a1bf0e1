"""Tokenised data that was built beforehand, as a training set: shards end to end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from swift.config.sections import DataSection
from swift.data.corpus import Corpus, DatasetPart, on_this_machine
from swift.data.encodings import Encoding
from swift.data.media import MediaRef
from swift.data.samples import Encoded
from swift.data.shards import read_index
from swift.data.sources.rows import ListRows, RowData, part_of
from swift.data.sources.spec import parse_source
from swift.data.store import Store, StoredSamples
from swift.data.store_index import VALUE, is_tokenised, map_column
from swift.errors import DataError
from swift.remote.urls import is_remote
from swift.untrusted import inside

_OPEN = 64
"""Shards that are open at a time: each takes a few open files."""


class JoinedStore(StoredSamples):
    """The samples of all shards. Opening it reads the index alone; shards are opened as samples are asked for."""

    def __init__(self, folder: Path) -> None:
        index = read_index(folder)
        self.folder = folder
        self.index = index
        self.notes = index["report"]
        try:
            self.fingerprint = str(index["key"])
            self.longest = int(index["longest"])
            self.values = tuple(map(str, index["values"]))
            self._names = [inside(folder, name, DataError, source=str(folder)) for name, _ in index["shards"]]
            self._counts = [int(samples) for _, samples in index["shards"]]
            self._ends = list(accumulate(self._counts))
            self.lengths = map_column(folder / "lengths.bin", np.int64)
            self.loss_weights = map_column(folder / "loss_weights.bin", np.float64)
            self.rows = map_column(folder / "rows.bin", np.int64)
            self._values = {
                name: map_column(inside(folder, f"{VALUE}{name}.bin", DataError, source=str(folder)), np.float64)
                for name in self.values
            }
            if {len(each) for each in (self.lengths, self.loss_weights, self.rows, *self._values.values())} != {
                self._ends[-1]
            }:
                raise ValueError(folder)
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            raise DataError(
                f"The tokenised data in {folder} is not whole.", hint=f"Join it again: swift data join {folder}"
            ) from None
        self._holds_media = bool(index["media"])
        self._shard = lru_cache(maxsize=_OPEN)(self._open)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Encoded:
        store, local = self._find(index)
        return replace(store[local], sample_id=index)

    def media_counts(self, index: int) -> Mapping[str, int]:
        if not self._holds_media:
            return {}
        store, local = self._find(index)
        return store.media_counts(local)

    def column(self, name: str) -> np.ndarray:
        return self._values[name] if name in self._values else np.full(len(self), np.nan)

    @cached_property
    def media_kinds(self) -> frozenset[str]:  # type: ignore[override]  # made when it is first asked for
        if not self._holds_media:
            return frozenset()
        return frozenset().union(*(self._shard(number).media_kinds for number in range(len(self._names))))

    def media(self) -> Iterator[MediaRef]:
        if self._holds_media:
            for number in range(len(self._names)):
                yield from self._shard(number).media()

    def _find(self, index: int) -> tuple[Store, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number, local = part_of(self._ends, index)
        return self._shard(number), local

    def _open(self, number: int) -> Store:
        folder = self._names[number]
        try:
            store = Store(folder)
            if len(store) != self._counts[number]:
                raise ValueError(folder)
        except (OSError, ValueError, KeyError):
            raise DataError(
                f"The shard {folder} is not what it was when the shards were joined.",
                hint=f"Build it again, and then: swift data join {self.folder}",
            ) from None
        return store


class _NotKept(ListRows):
    """Rows of which only the tokens are there."""

    def __getitem__(self, index: int) -> RowData:
        raise DataError(
            f"{self.location(index)} was requested, but tokenised data has only tokens.",
            hint="Give the rows to the run: --dataset FILE",
        )


def tokenised_corpus(index: Mapping[str, Any], encoding: Encoding) -> Corpus:
    """Return the corpus of tokenised data: it knows where each row stood, and has none of them."""
    sources = [(str(name), int(rows)) for name, rows in index["sources"]]
    parts = [DatasetPart(name, _NotKept(range(rows), name), rows, {}) for name, rows in sources]
    return Corpus(parts, encoding, check=False)


def tokenised_among(sources: Sequence[str], section: DataSection) -> Path | None:
    """Return the folder of tokenised data that a run names; raise `DataError` where it names more than that."""
    for name in sources:
        if is_remote(name):
            folder = Path(on_this_machine(parse_source(name), section).location)
        else:
            folder = Path(name).expanduser()
        if not is_tokenised(folder):
            continue
        if len(sources) > 1:
            others = ", ".join(each for each in sources if each != name)
            raise DataError(
                f"{name} is tokenised data, which cannot be combined with other data sets ({others}).",
                hint="Build all of them together: swift data build ... --dataset ONE OTHER --out FOLDER",
            )
        return folder
    return None
