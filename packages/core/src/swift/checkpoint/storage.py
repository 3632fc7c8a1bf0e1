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
from safetensors import safe_open
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

from swift.checkpoint.container import DTYPE_NAMES, DTYPES, FileRecord, write_safetensors
from swift.checkpoint.coordination import agree
from swift.errors import CheckpointError
from swift.train.comms import Comms

STATE = "state"
"""Folder of the canonical tensors inside a checkpoint; files beside it are for other programs to load."""
INDEX = f"{STATE}/index.json"

# Tensors that are streamed are gathered into files of about this size.
_STREAM_FILE_BYTES = 512 * 2**20


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

    def write(self, folder: Path) -> dict[str, FileRecord]:
        """Write the file, if there is anything in it, and return its record by name."""
        return {self.file: write_safetensors(folder / self.file, self.tensors)} if self.tensors else {}


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


def plan_shares(tensors: Mapping[str, Any], comms: Comms, *, stage: bool) -> tuple[Share, Index]:
    """Agree on who writes what, and return this process's share and the whole index.

    With `stage` the share is a copy in main memory, and training may go on changing the tensors.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=comms.rank == 0)
    local: SavePlan | None = None
    error: CheckpointError | None = None
    try:
        local = planner.create_local_plan()
    except (TypeError, ValueError, RuntimeError) as cause:
        error = CheckpointError(f"The tensors to save cannot be planned: {cause}.")
    agree(comms, error)
    try:
        # Every process works out the same global plan from the same local ones.
        plans, _ = planner.create_global_plan([plan for plan in comms.gather(local) if plan is not None])
    except (ValueError, AssertionError) as cause:
        raise CheckpointError(f"The processes hold contradicting parts of a tensor: {cause}.") from None

    index = _place(plans)
    gap = first_gap(index)
    if gap:
        raise CheckpointError(f"The tensors to save are not whole: only {gap}.")
    share = Share(_share_file(comms.rank), {})
    for item in planner.finish_plan(plans[comms.rank]).items:
        chunk = item.tensor_data.chunk if item.tensor_data else None
        if chunk is None or not math.prod(chunk.sizes):
            continue
        view = planner.resolve_data(item)
        assert isinstance(view, torch.Tensor)
        view = view.detach()
        key = _key(item.index.fqn, tuple(chunk.offsets), tuple(chunk.sizes), index[item.index.fqn].shape)
        share.tensors[key] = view.to("cpu", copy=True) if stage else view
    return share, index


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
    """Whole tensors that arrive one at a time, written as they come; about one file of them is held in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, torch.Tensor] = {}
        self._bytes = 0
        self.index: Index = {}
        self.records: dict[str, FileRecord] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take a copy; the caller may use the memory again."""
        if name in self.index:
            raise CheckpointError(f"{name} was streamed twice.")
        file = f"{STATE}/stream-{len(self.records):05d}.safetensors"
        shape = tuple(tensor.shape)
        chunks = (Chunk((0,) * len(shape), shape, file, name),) if tensor.numel() else ()
        self.index[name] = StoredTensor(tensor.dtype, shape, chunks)
        if not tensor.numel():
            return
        self._waiting[name] = tensor.detach().to("cpu", copy=True)
        self._bytes += tensor.nbytes
        if self._bytes >= _STREAM_FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting:
            file = f"{STATE}/stream-{len(self.records):05d}.safetensors"
            self.records[file] = write_safetensors(self._folder / file, self._waiting)
            self._waiting, self._bytes = {}, 0


class StoredTensors:
    """Reads parts of stored tensors; files are opened once and mapped, not loaded."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}
        self.index = index

    def read_into(self, target: torch.Tensor, chunk: Chunk, start: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        """Copy the rectangle of `chunk` that begins at `start` (counted from the chunk's corner) into `target`."""
        file = self._open.get(chunk.file)
        if file is None:
            file = self._open[chunk.file] = safe_open(self._folder / chunk.file, framework="pt")
        if start == (0,) * len(start) and lengths == chunk.sizes:
            part = file.get_tensor(chunk.key)
        else:
            where = tuple(slice(first, first + length) for first, length in zip(start, lengths, strict=True))
            part = file.get_slice(chunk.key)[where]
        target.detach().copy_(part)

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
