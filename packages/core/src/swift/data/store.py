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
from typing import IO, Any

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
_BLOCK = 1 << 20


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


class Store(SampleSet):
    """Encoded samples in a folder. Its columns are memory-mapped when they are first asked for; none is read whole."""

    def __init__(self, folder: Path) -> None:
        manifest = read_manifest(folder)
        lengths = manifest["lengths"]
        self.folder = folder
        self.notes: dict[str, Any] = manifest["notes"]
        self.fingerprint = folder.name
        self.longest: int = manifest["index"]["longest"]
        """Tokens of the longest segment."""
        self.may_hold_media = "media" in lengths
        values = [name.removeprefix(VALUE) for name in lengths if name.startswith(VALUE)]
        of_tokens = [name.removeprefix(_TOKEN_VALUE) for name in lengths if name.startswith(_TOKEN_VALUE)]
        types = {**_types(values, of_tokens, media=self.may_hold_media), **INDEX}
        for name, dtype in types.items():
            size = (folder / f"{name}.bin").stat().st_size
            if size != np.dtype(dtype).itemsize * {**lengths, **manifest["index"]["lengths"]}[name]:
                raise ValueError(f"{folder} is not whole")
        self._columns = _Columns(folder, types)
        self._token_values = {name: f"{_TOKEN_VALUE}{name}" for name in of_tokens}
        self.values: tuple[str, ...] = tuple(manifest["index"]["values"])
        """The numbers that any sample has."""
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
    def sample_ids(self) -> np.ndarray:  # type: ignore[override]  # as `lengths`
        return np.arange(self._count, dtype=np.int64)

    @property
    def rows(self) -> np.ndarray:
        """Return, per sample, the row of the source that it was made of."""
        return self._columns["rows"]

    @cached_property
    def _media(self) -> _MediaColumns | None:
        return _MediaColumns(self._columns) if self.may_hold_media else None

    @property
    def holds_media(self) -> bool:
        """Whether any sample holds an image."""
        return self._media is not None and len(self._media) > 0

    def media(self) -> Iterator[MediaRef]:
        """Yield the images of all samples."""
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
        return Encoded(index, segments, values=self._values_of(index))

    def facts(self, index: int) -> Facts:
        return Facts(
            int(self.lengths[index]), float(self.loss_weights[index]), self._values_of(index), self.media_counts(index)
        )

    def media_counts(self, index: int) -> dict[str, int]:
        """Return how many images, videos and sounds a sample holds, by kind."""
        return {} if self._media is None else self._media.counts(*self._segments_of(index))

    @cached_property
    def media_kinds(self) -> frozenset[str]:
        """Which kinds of media the samples hold."""
        return frozenset() if self._media is None else self._media.kinds()

    def column(self, name: str) -> np.ndarray:
        return self._columns[VALUE + name] if name in self.values else np.full(self._count, np.nan)

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """Yield a column by its name on disk, piece by piece, without mapping it."""
        return blocks_of(self.folder / f"{name}.bin", self._columns.types[name])

    def blocks_of_value(self, name: str) -> Iterator[np.ndarray]:
        """Yield what `column` returns, piece by piece."""
        return self.blocks(VALUE + name) if name in self.values else iter([np.full(self._count, np.nan)])

    def _segments_of(self, index: int) -> tuple[int, int]:
        """Return the first segment of a sample, and the first that is not its own."""
        if not -self._count <= index < self._count:
            raise IndexError(index)
        starts = self._columns["sample_starts"]
        return int(starts[index % self._count]), int(starts[index % self._count + 1])

    def _values_of(self, index: int) -> dict[str, float]:
        return {name: float(self._columns[VALUE + name][index]) for name in self.values}


class _Columns:
    """The columns of a store, each memory-mapped when it is first asked for."""

    def __init__(self, folder: Path, types: Mapping[str, Any]) -> None:
        self._folder = folder
        self.types = types
        self._mapped: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._mapped:
            self._mapped[name] = map_column(self._folder / f"{name}.bin", self.types[name])
        return self._mapped[name]


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


@dataclass(frozen=True)
class Spilled:
    """Samples that another process has written next to the store that they belong to."""

    file: Path
    lengths: Mapping[str, int]
    """Per array; in the file they lie one after the other."""


class StoreWriter:
    """Writes a store next to its final path, and renames it when it is complete."""

    def __init__(
        self, folder: Path, values: Iterable[str] = (), token_values: Iterable[str] = (), *, media: bool = False
    ) -> None:
        self._folder = folder
        self._types = _types(values, token_values, media=media)
        with _writing_to(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            self._files: dict[str, IO[bytes]] = {
                name: (self._temporary / f"{name}.bin").open("wb") for name in self._types
            }
        self._lengths = dict.fromkeys(self._types, 0)

    def add(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Append samples in the form of `pack_arrays`."""
        with _writing_to(self._folder.parent):
            for name, file in self._files.items():
                file.write(arrays[name].tobytes())
                self._lengths[name] += len(arrays[name])

    def spill(self, arrays: Mapping[str, np.ndarray], name: str) -> Spilled:
        """Write samples to a file for `take`; another process may do so."""
        path = self._temporary / f"{name}.spilled"
        with _writing_to(self._folder.parent), path.open("wb") as file:
            for each in self._types:
                file.write(arrays[each].tobytes())
        return Spilled(path, {each: len(arrays[each]) for each in self._types})

    def take(self, spilled: Spilled) -> None:
        """Append samples that were spilled."""
        with _writing_to(self._folder.parent), spilled.file.open("rb") as source:
            for name, file in self._files.items():
                left = spilled.lengths[name] * np.dtype(self._types[name]).itemsize
                while left:
                    block = source.read(min(left, _BLOCK))
                    if not block:
                        raise OSError(0, f"{spilled.file} is not whole")
                    file.write(block)
                    left -= len(block)
                self._lengths[name] += spilled.lengths[name]
            spilled.file.unlink()

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
                self.discard()
        return Store(self._folder)

    def discard(self) -> None:
        """Leaves nothing behind."""
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


def pack_arrays(
    samples: Iterable[tuple[int, Encoded]],
    values: Sequence[str] = (),
    token_values: Sequence[str] = (),
    *,
    media: bool = False,
) -> dict[str, np.ndarray]:
    """Return samples, each with the row that it was made of, as the flat arrays of a store.

    `values` and `token_values` are the numbers that the encoding declares; `media` tells whether samples may hold
    images.
    """
    listed = list(samples)
    segments = [segment for _, sample in listed for segment in sample.segments]
    arrays: dict[str, Any] = {
        "ids": _joined([segment.input_ids for segment in segments]),
        "weights": _joined([segment.weights for segment in segments]),
        "segment_lengths": [len(segment) for segment in segments],
        "segment_counts": [len(sample.segments) for _, sample in listed],
        "rows": [row for row, _ in listed],
        **{VALUE + name: [each.values.get(name, np.nan) for _, each in listed] for name in values},
        **{_TOKEN_VALUE + name: _joined([each.token_values[name] for each in segments]) for name in token_values},
    }
    if media:
        arrays |= _media_arrays(segments)
    types = _types(values, token_values, media=media)
    return {name: np.asarray(arrays[name], dtype=dtype).reshape(-1) for name, dtype in types.items()}


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


def _types(values: Iterable[str], token_values: Iterable[str] = (), *, media: bool = False) -> dict[str, Any]:
    """Return the type of each column, by its name on disk."""
    of_samples = {VALUE + name: np.float64 for name in values}
    of_tokens = {_TOKEN_VALUE + name: np.float32 for name in token_values}
    return {**_TYPES, **of_samples, **of_tokens, **(_MEDIA if media else {})}


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
