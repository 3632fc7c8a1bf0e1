"""Encoded samples: the data set that training reads, and its memory-mapped form on disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from swift.config.media import KINDS
from swift.data.media import MediaRef
from swift.data.samples import Encoded, Segment
from swift.data.store_index import INDEX, VALUE, blocks_of, map_column, read_manifest, starts_of, write_index
from swift.errors import DataError

_TYPES: Mapping[str, Any] = {
    "ids": np.int32,
    "weights": np.float32,
    "segment_lengths": np.int64,
    "segment_counts": np.int64,
    "rows": np.int64,
}
"""The columns of every store."""
_MEDIA: Mapping[str, Any] = {
    "media_counts": np.int64,
    "media": np.int64,
    "media_rates": np.float64,
    "media_sources": np.uint8,
}
"""The columns of a store of samples that may hold images, videos or sounds: how many each segment has, their numbers,
their paths."""
_NUMBERS = ("start", "length", "width", "height", "size", "frames")
"""What is kept of an image, besides its rate, its kind, its path and the length of that."""
_KINDS = tuple(KINDS)
_TOKEN_VALUE = "token_value."
"""How the column of a number per token begins that an encoding declares."""


@dataclass(frozen=True)
class Facts:
    """`SampleFacts` that were counted when the store was opened."""

    tokens: int
    loss_weight: float
    values: Mapping[str, float]
    media: Mapping[str, int] = field(default_factory=dict)


class SampleSet(ABC):
    """Encoded samples with random access."""

    lengths: np.ndarray
    """int64: tokens per sample, over all its segments."""
    loss_weights: np.ndarray
    """float64: `Encoded.loss_weight` per sample."""
    sample_ids: np.ndarray
    """int64: `Encoded.sample_id` per sample."""
    fingerprint: str
    """Changes when any sample changes."""

    def __len__(self) -> int:
        return len(self.lengths)

    @abstractmethod
    def __getitem__(self, index: int) -> Encoded:
        """Return one sample."""

    @abstractmethod
    def facts(self, index: int) -> Facts:
        """Return the facts of a sample without reading its tokens."""

    def column(self, name: str) -> np.ndarray:
        """Return one number per sample: `Encoded.values` under this name, NaN where a sample has none."""
        return np.array([self.facts(index).values.get(name, np.nan) for index in range(len(self))], dtype=np.float64)

    def subset(self, indices: Sequence[int] | np.ndarray) -> SampleSet:
        """Return these samples, in this order."""
        return _Subset(self, np.asarray(indices, dtype=np.int64))


class _Subset(SampleSet):
    def __init__(self, base: SampleSet, indices: np.ndarray) -> None:
        self._base = base
        self._indices = indices
        self.lengths = base.lengths[indices]
        self.loss_weights = base.loss_weights[indices]
        self.sample_ids = base.sample_ids[indices]
        self.fingerprint = f"{base.fingerprint}[{hash_of(indices.tobytes())}]"

    def __getitem__(self, index: int) -> Encoded:
        return self._base[int(self._indices[index])]

    def facts(self, index: int) -> Facts:
        return self._base.facts(int(self._indices[index]))

    def column(self, name: str) -> np.ndarray:
        chosen: np.ndarray = self._base.column(name)[self._indices]
        return chosen


class ReferencedSamples(SampleSet):
    """Samples that a reference model scores: without its log-probabilities until they are known."""

    def __init__(self, base: SampleSet) -> None:
        self._base = base
        self.lengths = base.lengths
        self.loss_weights = base.loss_weights
        self.sample_ids = base.sample_ids
        self.fingerprint = base.fingerprint
        self._logps: np.ndarray | None = None

    def fill(self, logps: np.ndarray) -> None:
        """Set the log-probabilities, shape [samples, segments]."""
        if len(logps) != len(self):
            raise ValueError(f"{len(logps)} reference scores for {len(self)} samples")
        self._logps = np.asarray(logps, dtype=np.float32)

    def __getitem__(self, index: int) -> Encoded:
        sample = self._base[index]
        return sample if self._logps is None else replace(sample, reference_logps=self._logps[index])

    def facts(self, index: int) -> Facts:
        return self._base.facts(index)

    def column(self, name: str) -> np.ndarray:
        return self._base.column(name)


class StoredSamples(SampleSet):
    """Encoded samples on disk, numbered in order."""

    folder: Path
    rows: np.ndarray
    """Per sample, the row of the source that it was made of."""
    notes: dict[str, Any]
    longest: int
    """Tokens of the longest segment."""
    values: tuple[str, ...]
    """The numbers that any sample has."""
    media_kinds: frozenset[str]
    """Which kinds of media the samples hold."""

    @cached_property
    def sample_ids(self) -> np.ndarray:  # type: ignore[override]  # made when it is first asked for
        return np.arange(len(self), dtype=np.int64)

    def facts(self, index: int) -> Facts:
        values = {name: float(self.column(name)[index]) for name in self.values}
        return Facts(int(self.lengths[index]), float(self.loss_weights[index]), values, self.media_counts(index))

    @abstractmethod
    def media_counts(self, index: int) -> Mapping[str, int]:
        """Return how many images, videos and sounds a sample holds, by kind."""

    @abstractmethod
    def media(self) -> Iterator[MediaRef]:
        """Yield the images of all samples."""


class Store(StoredSamples):
    """Encoded samples in a folder. Its columns are memory-mapped when they are first asked for; none is read whole."""

    def __init__(self, folder: Path) -> None:
        manifest = read_manifest(folder)
        lengths = manifest["lengths"]
        self.folder = folder
        self.notes = manifest["notes"]
        self.fingerprint = folder.name
        self.longest = manifest["index"]["longest"]
        self.may_hold_media = "media" in lengths
        for name in {*_TYPES, *lengths, *INDEX}:
            size = (folder / f"{name}.bin").stat().st_size
            if size != type_of(name).itemsize * {**lengths, **manifest["index"]["lengths"]}[name]:
                raise ValueError(f"{folder} is not whole")
        self._columns = _Columns(folder)
        self._token_values = {
            name.removeprefix(_TOKEN_VALUE): name for name in lengths if name.startswith(_TOKEN_VALUE)
        }
        self.values = tuple(manifest["index"]["values"])
        self._count: int = lengths["segment_counts"]

    def __len__(self) -> int:
        return self._count

    @cached_property
    def lengths(self) -> np.ndarray:  # type: ignore[override]  # made when it is first asked for
        return self._columns["lengths"]

    @cached_property
    def loss_weights(self) -> np.ndarray:  # type: ignore[override]  # as `lengths`
        return self._columns["loss_weights"]

    @cached_property
    def rows(self) -> np.ndarray:  # type: ignore[override]  # as `lengths`
        return self._columns["rows"]

    @cached_property
    def _media(self) -> _MediaColumns | None:
        return _MediaColumns(self._columns) if self.may_hold_media else None

    @property
    def holds_media(self) -> bool:
        """Whether any sample holds an image."""
        return self._media is not None and len(self._media) > 0

    def media(self) -> Iterator[MediaRef]:
        return iter(()) if self._media is None else self._media.all()

    def __getitem__(self, index: int) -> Encoded:
        first, last = self._segments_of(index)
        bounds = self._columns["segment_starts"][first : last + 1].tolist()
        ids, weights = self._columns["ids"], self._columns["weights"]
        of_tokens = {name: self._columns[column] for name, column in self._token_values.items()}
        segments = tuple(
            Segment(
                np.asarray(ids[start:end]),
                np.asarray(weights[start:end]),
                {name: np.asarray(array[start:end]) for name, array in of_tokens.items()},
                media=() if self._media is None else self._media.of_segment(first + number),
            )
            for number, (start, end) in enumerate(pairwise(bounds))
        )
        values = {name: float(self.column(name)[index]) for name in self.values}
        return Encoded(index, segments, values=values)

    def media_counts(self, index: int) -> Mapping[str, int]:
        return {} if self._media is None else self._media.counts(*self._segments_of(index))

    @cached_property
    def media_kinds(self) -> frozenset[str]:  # type: ignore[override]  # as `lengths`
        return frozenset() if self._media is None else self._media.kinds()

    def column(self, name: str) -> np.ndarray:
        return self._columns[VALUE + name] if name in self.values else np.full(self._count, np.nan)

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """Yield a column by its name on disk, piece by piece, without mapping it."""
        return blocks_of(self.folder / f"{name}.bin", type_of(name))

    def blocks_of_value(self, name: str) -> Iterator[np.ndarray]:
        """Yield what `column` returns, piece by piece."""
        return self.blocks(VALUE + name) if name in self.values else iter([np.full(self._count, np.nan)])

    def _segments_of(self, index: int) -> tuple[int, int]:
        """Return the first segment of a sample, and the first that is not its own."""
        if not -self._count <= index < self._count:
            raise IndexError(index)
        starts = self._columns["sample_starts"]
        return int(starts[index % self._count]), int(starts[index % self._count + 1])


class _Columns(dict[str, np.ndarray]):
    """The columns of a store, each memory-mapped when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> np.ndarray:
        self[name] = map_column(self._folder / f"{name}.bin", type_of(name))
        return self[name]


class _MediaColumns:
    """The images, videos and sounds of a store's segments."""

    def __init__(self, arrays: _Columns) -> None:
        self._firsts = starts_of(arrays["media_counts"])
        self._numbers = arrays["media"].reshape(-1, len(_NUMBERS) + 2)
        self._rates = arrays["media_rates"]
        self._bounds = starts_of(self._numbers[:, -1])
        self._sources = arrays["media_sources"]

    def __len__(self) -> int:
        return len(self._numbers)

    def counts(self, first: int, end: int) -> dict[str, int]:
        """Return how many media some segments have, by kind."""
        held = self._numbers[self._firsts[first] : self._firsts[end], -2].tolist()
        return {_KINDS[kind]: held.count(kind) for kind in sorted(set(held))}

    def kinds(self) -> frozenset[str]:
        """Return which kinds there are."""
        return frozenset(_KINDS[kind] for kind in np.unique(self._numbers[:, -2]).tolist())

    def of_segment(self, index: int) -> tuple[MediaRef, ...]:
        return tuple(map(self._one, range(int(self._firsts[index]), int(self._firsts[index + 1]))))

    def all(self) -> Iterator[MediaRef]:
        return map(self._one, range(len(self)))

    def _one(self, index: int) -> MediaRef:
        source = bytes(self._sources[self._bounds[index] : self._bounds[index + 1]]).decode("utf-8", "surrogateescape")
        *numbers, kind, _ = self._numbers[index].tolist()
        named = dict(zip(_NUMBERS, numbers, strict=True))
        return MediaRef(_KINDS[kind], source, **named, rate=float(self._rates[index]))


class StoreWriter:
    """Writes a store next to its final path, and renames it when it is complete; nothing is left after an error."""

    def __init__(self, folder: Path, columns: Iterable[str]) -> None:
        self._folder = folder
        with _writing_to(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            self._files = {name: (self._temporary / f"{name}.bin").open("wb") for name in columns}
        self._lengths = dict.fromkeys(self._files, 0)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            self._discard()

    def add(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Append samples in the form of `pack_arrays`."""
        with _writing_to(self._folder.parent):
            for name, file in self._files.items():
                file.write(arrays[name].tobytes())
                self._lengths[name] += len(arrays[name])

    def spill(self, arrays: Mapping[str, np.ndarray], name: str) -> Path:
        """Write samples to a file for `take`; another process may do so."""
        path = self._temporary / f"{name}.spilled"
        with _writing_to(self._folder.parent), path.open("wb") as file:
            for each in self._files:
                np.save(file, arrays[each])
        return path

    def take(self, spilled: Path) -> None:
        """Append samples that were spilled."""
        with _writing_to(self._folder.parent), spilled.open("rb") as file:
            self.add({each: np.load(file) for each in self._files})
            spilled.unlink()

    def finish(self, notes: Mapping[str, Any]) -> Store:
        """Rename the store to its final path; one that another run has put there meanwhile is as good."""
        with _writing_to(self._folder.parent):
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
                file.close()
            write_index(self._temporary, {"lengths": self._lengths, "notes": dict(notes)})
            try:
                self._temporary.rename(self._folder)
            except OSError:
                if not self._folder.exists():
                    raise
                self._discard()
        return Store(self._folder)

    def _discard(self) -> None:
        for file in self._files.values():
            file.close()
        shutil.rmtree(self._temporary, ignore_errors=True)


def open_store(folder: Path) -> Store | None:
    """Return the store, or None when there is none or a damaged one, which is removed."""
    if not folder.is_dir():
        return None
    try:
        return Store(folder)
    except (OSError, ValueError, KeyError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def pack_arrays(samples: Sequence[tuple[int, Encoded]], columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Return samples, each with the row that it was made of, as the flat arrays of a store."""
    segments = [segment for _, sample in samples for segment in sample.segments]
    arrays: dict[str, Any] = {
        "ids": _joined([segment.input_ids for segment in segments]),
        "weights": _joined([segment.weights for segment in segments]),
        "segment_lengths": [len(segment) for segment in segments],
        "segment_counts": [len(sample.segments) for _, sample in samples],
        "rows": [row for row, _ in samples],
        **_media_arrays(segments),
    }
    for column in columns:
        if column.startswith(VALUE):
            arrays[column] = [each.values.get(column.removeprefix(VALUE), np.nan) for _, each in samples]
        elif column.startswith(_TOKEN_VALUE):
            arrays[column] = _joined([each.token_values[column.removeprefix(_TOKEN_VALUE)] for each in segments])
    return {name: np.asarray(arrays[name], dtype=type_of(name)).reshape(-1) for name in columns}


def _joined(arrays: Sequence[np.ndarray]) -> Any:
    return np.concatenate(arrays) if arrays else []


def _media_arrays(segments: Sequence[Segment]) -> dict[str, Any]:
    held = [each for segment in segments for each in segment.media]
    sources = [each.source.encode("utf-8", "surrogateescape") for each in held]
    numbers = [[getattr(each, name) for name in _NUMBERS] for each in held]
    return {
        "media_counts": [len(segment.media) for segment in segments],
        "media": [
            [*row, _KINDS.index(each.kind), len(source)]
            for row, source, each in zip(numbers, sources, held, strict=True)
        ],
        "media_rates": [each.rate for each in held],
        "media_sources": np.frombuffer(b"".join(sources), dtype=np.uint8),
    }


def columns_of(values: Iterable[str], token_values: Iterable[str], *, media: bool) -> list[str]:
    """Return the columns, by their names on disk, of samples with these numbers, which may hold `media`."""
    of_samples, of_tokens = (VALUE + name for name in values), (_TOKEN_VALUE + name for name in token_values)
    return [*_TYPES, *of_samples, *of_tokens, *(_MEDIA if media else ())]


def type_of(column: str) -> np.dtype[Any]:
    """Return the type of a column by its name on disk."""
    if column.startswith(VALUE):
        return np.dtype(np.float64)
    return np.dtype(np.float32 if column.startswith(_TOKEN_VALUE) else {**_TYPES, **_MEDIA, **INDEX}[column])


def hash_of(*parts: bytes | str) -> str:
    """Return a short content hash."""
    digest = xxhash.xxh3_128()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return str(digest.hexdigest())


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    """Turn an error of the file system into one that names the folder."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"The tokenised data cannot be written to {str(folder)!r}: {error.strerror or error}.",
            hint="Name another folder: --data.cache FOLDER",
        ) from error
