"""Tensors on disk: one safetensors file per process and one `index.json`, planned by torch distributed checkpoint.

DCP's planner decides who writes which part (replicas once) and who reads what (any layout from any other). The files
are ours: nothing is pickled, and a part that is missing is an error, never a gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from swift.checkpoint.container import DTYPE_NAMES, DTYPES, write_safetensors
from swift.checkpoint.coordination import agree
from swift.checkpoint.reading import SafetensorsFile
from swift.checkpoint.records import FileRecord
from swift.checkpoint.staging import Staging
from swift.errors import CheckpointError
from swift.train.comms import Comms

STATE = "state"
"""Folder of the canonical tensors inside a checkpoint; files beside it are for other programs to load."""
INDEX = f"{STATE}/index.json"

# A run of a thousand processes leaves as many files; a process may have about as many open, others included.
_OPEN_FILES = 128
# Streamed tensors wait for each other until there is a file of this size, or of the largest of them, to write.
_STREAM_FILE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Chunk:
    """A rectangle of a tensor, and the entry of the file that holds it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    key: str


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the checkpoint; its chunks cover it without overlap."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


Index = dict[str, StoredTensor]


@dataclass
class Share:
    """What one process writes: entries of its file."""

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


def index_from_json(value: Mapping[str, Any]) -> Index:
    """From `index.json`; KeyError, TypeError or ValueError when it is not one, or leaves a part of a tensor out."""
    index: Index = {}
    for name, stored in value["tensors"].items():
        chunks = tuple(
            Chunk(tuple(chunk["offsets"]), tuple(chunk["sizes"]), str(chunk["file"]), str(chunk["key"]))
            for chunk in stored["chunks"]
        )
        index[name] = StoredTensor(DTYPES[stored["dtype"]], tuple(stored["shape"]), chunks)
    gap = first_gap(index)
    if gap:
        raise ValueError(gap)
    return index


def first_gap(index: Index) -> str | None:
    """Which tensor is not whole. DCP has refused overlaps, so that counting elements is enough."""
    for name, stored in index.items():
        held = sum(math.prod(chunk.sizes) for chunk in stored.chunks)
        if held != math.prod(stored.shape):
            return f"{held} of the {math.prod(stored.shape)} elements of {name} are there"
    return None


@dataclass(frozen=True)
class _Agreed:
    """What all processes have planned together; it holds as long as no process has something else to save."""

    comms: Comms
    local: SavePlan
    own: SavePlan
    """What this process writes."""
    index: Index


_agreed: _Agreed | None = None
"""Of the last save: the next one saves the same tensors with other values."""


def plan_shares(tensors: Mapping[str, Any], comms: Comms) -> tuple[Share, Index]:
    """Agree on who writes what, and return this process's share, as views, and the whole index."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=comms.rank == 0)
    plan = _plan(planner, comms)
    share = Share(_share_file(comms.rank), {})
    for item in planner.finish_plan(plan.own).items:
        chunk = item.tensor_data.chunk if item.tensor_data else None
        if chunk is None or not math.prod(chunk.sizes):
            continue
        view = planner.resolve_data(item)
        assert isinstance(view, torch.Tensor)
        key = _key(item.index.fqn, tuple(chunk.offsets), tuple(chunk.sizes), plan.index[item.index.fqn].shape)
        share.tensors[key] = view.detach()
    return share, plan.index


def _plan(planner: DefaultSavePlanner, comms: Comms) -> _Agreed:
    """The plan of the last save where it still holds on every process, else a new one."""
    global _agreed
    local: SavePlan | None = None
    error: CheckpointError | None = None
    try:
        local = planner.create_local_plan()
    except (TypeError, ValueError, RuntimeError) as cause:
        error = CheckpointError(f"The tensors to save cannot be planned: {cause}.")
    agree(comms, error)
    assert local is not None
    known = _agreed
    if not comms.any(known is None or known.comms is not comms or known.local != local):
        assert known is not None
        return known
    try:
        # Every process works out the same global plan from the same local ones.
        plans, _ = planner.create_global_plan(comms.gather(local))
    except (ValueError, AssertionError) as cause:
        raise CheckpointError(f"The processes hold contradicting parts of a tensor: {cause}.") from None
    index = _place(plans)
    gap = first_gap(index)
    if gap:
        raise CheckpointError(f"The tensors to save are not whole: only {gap}.")
    _agreed = _Agreed(comms, local, plans[comms.rank], index)
    return _agreed


def _share_file(rank: int) -> str:
    return f"{STATE}/{rank:05d}.safetensors"


def _key(name: str, offsets: tuple[int, ...], sizes: tuple[int, ...], shape: tuple[int, ...]) -> str:
    return name if sizes == shape else f"{name}@{','.join(map(str, offsets))}"


def _place(plans: list[SavePlan]) -> Index:
    found: dict[str, tuple[torch.dtype, tuple[int, ...], list[Chunk]]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            data, name = item.tensor_data, item.index.fqn
            if data is None:
                raise CheckpointError(f"{name} is not a tensor; hand values over as facts instead.")
            shape = tuple(data.size)
            _, _, chunks = found.setdefault(name, (data.properties.dtype, shape, []))
            offsets, sizes = tuple(data.chunk.offsets), tuple(data.chunk.sizes)
            if math.prod(sizes):
                chunks.append(Chunk(offsets, sizes, _share_file(rank), _key(name, offsets, sizes, shape)))
    return {name: StoredTensor(dtype, shape, tuple(chunks)) for name, (dtype, shape, chunks) in found.items()}


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
        shape = tuple(tensor.shape)
        chunks = (Chunk((0,) * len(shape), shape, file, name),) if tensor.numel() else ()
        self.index[name] = StoredTensor(tensor.dtype, shape, chunks)
        if not tensor.numel():
            return
        if tensor.nbytes >= self._room:
            self.records[file] = write_safetensors(self._folder / file, {name: tensor})
            return
        self._waiting[name] = tensor.detach().to("cpu", copy=True)
        self._bytes += tensor.nbytes

    def flush(self) -> None:
        """Write what waits."""
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

    def read_into(self, target: torch.Tensor, chunk: Chunk, start: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        """Copy the rectangle of `chunk` that begins at `start` (counted from the chunk's corner) into `target`."""
        file = self._open.get(chunk.file)
        if file is None:
            if len(self._open) == _OPEN_FILES:
                del self._open[next(iter(self._open))]
            file = self._open[chunk.file] = SafetensorsFile(self.folder / chunk.file)
        file.read_into(target, chunk.key, start, lengths)

    def read(self, name: str) -> torch.Tensor:
        """One whole tensor."""
        stored = self.index[name]
        tensor = torch.empty(stored.shape, dtype=stored.dtype)
        for chunk in stored.chunks:
            where = tuple(
                slice(first, first + length) for first, length in zip(chunk.offsets, chunk.sizes, strict=True)
            )
            self.read_into(tensor[where], chunk, (0,) * len(chunk.sizes), chunk.sizes)
        return tensor


class IndexReader(StorageReader):
    """Lets DCP's load planner read what the index describes."""

    def __init__(self, stored: StoredTensors) -> None:
        self._stored = stored
        self._chunks = {
            MetadataIndex(name, torch.Size(chunk.offsets)): chunk
            for name, tensor in stored.index.items()
            for chunk in tensor.chunks
        }

    def reset(self, checkpoint_id: object = None) -> None:
        """The files were given to the constructor."""

    def read_metadata(self) -> Metadata:
        """The index in DCP's terms."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=tensor.dtype),
                    torch.Size(tensor.shape),
                    [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in tensor.chunks],
                )
                for name, tensor in self._stored.index.items()
            }
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As planned."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As planned."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill this process's tensors."""
        for item in plan.items:
            target = planner.resolve_tensor(item)
            chunk = self._chunks[item.storage_index]
            self._stored.read_into(target, chunk, tuple(item.storage_offsets), tuple(item.lengths))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        """This reader is always made by hand."""
        return False
