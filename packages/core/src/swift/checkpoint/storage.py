"""Tensors on disk: one safetensors file per process and one `index.json`.

Nothing is pickled, and a missing part is an error. `dcp_planners` decides who writes and reads what.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from swift.checkpoint.checksums import FileRecord
from swift.checkpoint.host_copies import Staging
from swift.checkpoint.safetensors_read import SafetensorsFile
from swift.checkpoint.safetensors_write import DTYPE_NAMES, DTYPES, write_safetensors
from swift.config.problems import first_problem
from swift.errors import CheckpointError
from swift.untrusted import inside

STATE = "state"
"""Folder of the canonical tensors inside a checkpoint; files next to it are for third-party tools."""
INDEX = f"{STATE}/index.json"

# A run of a thousand processes leaves as many files; a process may have about as many open, others included.
_OPEN_FILES = 128
# Streamed tensors wait for each other until there is a file of this size, or of the largest of them, to write.
_STREAM_FILE_BYTES = 16 * 2**20


_Sizes = Annotated[tuple[Annotated[StrictInt, Field(ge=0, lt=1 << 53)], ...], Field(max_length=16)]


@dataclass(frozen=True)
class FileChunk:
    """A rectangle of a tensor, and the entry of the file that holds it. Checked where `index.json` is read."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    offsets: _Sizes
    sizes: _Sizes
    file: StrictStr
    key: StrictStr


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the checkpoint; its chunks cover it without overlap."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[FileChunk, ...]

    @classmethod
    def whole(cls, tensor: torch.Tensor, file: str, name: str) -> StoredTensor:
        """Return the record of a tensor in one file; one without elements is in the index alone."""
        shape = tuple(tensor.shape)
        return cls(tensor.dtype, shape, (FileChunk((0,) * len(shape), shape, file, name),) if tensor.numel() else ())


Index = dict[str, StoredTensor]


@dataclass
class RankFile:
    """Entries of a checkpoint's file that one process writes."""

    file: str
    tensors: dict[str, torch.Tensor]
    staging: Staging | None = None

    def stage(self, written: torch.cuda.Event | None) -> None:
        """Copy it to main memory, so that training may go on changing the tensors; `written` as for `Staging`."""
        self.staging = Staging(self.tensors, written)
        self.tensors = self.staging.copies

    def write(self, folder: Path) -> dict[str, FileRecord]:
        """Write the file, if there is anything in it, let go of what is in it, and return its record by name."""
        try:
            return {self.file: write_safetensors(folder / self.file, self.tensors)} if self.tensors else {}
        finally:
            self.tensors = {}
            if self.staging is not None:
                self.staging.release()


def rank_file(rank: int) -> str:
    """Name of the file that the process of this rank writes."""
    return f"{STATE}/{rank:05d}.safetensors"


def index_to_json(index: Index) -> dict[str, Any]:
    """For `index.json`."""
    return {
        "tensors": {
            name: {
                "dtype": DTYPE_NAMES[stored.dtype],
                "shape": list(stored.shape),
                "chunks": [asdict(chunk) for chunk in stored.chunks],
            }
            for name, stored in index.items()
        }
    }


class _Tensor(BaseModel):
    """`StoredTensor`, as `index.json` has it."""

    model_config = ConfigDict(extra="forbid")

    dtype: StrictStr
    shape: _Sizes
    chunks: tuple[FileChunk, ...]


class _IndexFile(BaseModel):
    """The whole of `index.json`."""

    model_config = ConfigDict(extra="forbid")

    tensors: dict[str, _Tensor]


def index_from_json(value: Any, folder: Path) -> Index:
    """Return what `index.json` of the checkpoint in `folder` says; `CheckpointError` where it cannot be so."""
    source = folder / INDEX
    try:
        parsed = _IndexFile.model_validate(value)
    except ValidationError as error:
        raise CheckpointError(f"{source} is damaged: {first_problem(error)}.") from None
    index: Index = {}
    for file in dict.fromkeys(chunk.file for stored in parsed.tensors.values() for chunk in stored.chunks):
        inside(folder, file, CheckpointError, source=str(source))
    for name, stored in parsed.tensors.items():
        if stored.dtype not in DTYPES:
            raise CheckpointError(f"{source} is damaged: {name} has the unknown precision {stored.dtype!r:.60}.")
        for chunk in stored.chunks:
            if not _lies_in(chunk, stored.shape):
                raise CheckpointError(
                    f"{source} is damaged: a part of {name} lies at {chunk.offsets} with the sizes {chunk.sizes}, "
                    f"outside of its shape {stored.shape}."
                )
        if len({chunk.offsets for chunk in stored.chunks}) != len(stored.chunks):
            raise CheckpointError(f"{source} is damaged: two shards of {name} overlap.")
        index[name] = StoredTensor(DTYPES[stored.dtype], stored.shape, stored.chunks)
    missing = first_missing(index)
    if missing:
        raise CheckpointError(f"{source} is damaged: only {missing}.")
    return index


def _lies_in(chunk: FileChunk, shape: tuple[int, ...]) -> bool:
    return len(chunk.offsets) == len(chunk.sizes) == len(shape) and all(
        start + length <= size for start, length, size in zip(chunk.offsets, chunk.sizes, shape, strict=True)
    )


def first_missing(index: Index) -> str | None:
    """Return which tensor is not whole. DCP has refused overlaps, so that counting elements is enough."""
    for name, stored in index.items():
        held = sum(math.prod(chunk.sizes) for chunk in stored.chunks)
        if held != math.prod(stored.shape):
            return f"{held} of the {math.prod(stored.shape)} elements of {name} are there"
    return None


class StreamFiles:
    """Whole tensors that arrive one at a time, written as they come.

    What waits for others is never more than the largest of them, so that with the one that arrives there are never
    more than two largest tensors in memory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, torch.Tensor] = {}
        self._bytes = 0
        self._room = _STREAM_FILE_BYTES
        self.index: Index = {}
        self.records: dict[str, FileRecord] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Write it, or take a copy; the caller may use the memory again."""
        if name in self.index:
            raise CheckpointError(f"{name} was streamed twice.")
        self._room = max(self._room, tensor.nbytes)
        if self._bytes + tensor.nbytes > self._room:
            self.flush()
        file = self._file()
        self.index[name] = StoredTensor.whole(tensor, file, name)
        if not tensor.numel():
            return
        if tensor.nbytes >= self._room:
            self.records[file] = write_safetensors(self._folder / file, {name: tensor})
            return
        self._waiting[name] = tensor.detach().to("cpu", copy=True)
        self._bytes += tensor.nbytes

    def flush(self) -> None:
        if self._waiting:
            file = self._file()
            self.records[file] = write_safetensors(self._folder / file, self._waiting)
            self._waiting, self._bytes = {}, 0

    def _file(self) -> str:
        return f"{STATE}/stream-{len(self.records):05d}.safetensors"


class StoredTensors:
    """Reads parts of stored tensors; files stay open."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.index = index
        self._open: dict[str, SafetensorsFile] = {}

    def names(self) -> list[str]:
        """Canonical names of all tensors."""
        return list(self.index)

    def read_into(
        self, target: torch.Tensor, chunk: FileChunk, start: tuple[int, ...], lengths: tuple[int, ...]
    ) -> None:
        """Copy the rectangle of `chunk` that begins at `start` (counted from the chunk's corner) into `target`."""
        file = self._open.get(chunk.file)
        if file is None:
            if len(self._open) == _OPEN_FILES:
                del self._open[next(iter(self._open))]
            file = self._open[chunk.file] = self._opened(chunk.file)
        file.read_into(target, chunk.key, start, lengths)

    def _opened(self, name: str) -> SafetensorsFile:
        """Return one of the files, which holds what the index says."""
        file = SafetensorsFile(self.folder / name)
        for tensor, stored in self.index.items():
            for chunk in stored.chunks:
                if chunk.file == name:
                    file.check(tensor, chunk.key, stored.dtype, chunk.sizes)
        return file

    def read(self, name: str) -> torch.Tensor:
        stored = self.index[name]
        tensor = torch.empty(stored.shape, dtype=stored.dtype)
        self.fill(tensor, name)
        return tensor

    def fill(self, target: torch.Tensor, name: str) -> None:
        """Copy one whole tensor into `target`, which has its shape, converting its dtype."""
        plain = target.detach()
        for chunk in self.index[name].chunks:
            where = tuple(
                slice(first, first + length) for first, length in zip(chunk.offsets, chunk.sizes, strict=True)
            )
            self.read_into(plain[where], chunk, (0,) * len(chunk.sizes), chunk.sizes)
