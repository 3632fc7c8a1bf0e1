"""Plans with torch distributed checkpoint (DCP) which process writes or reads which shard, in any layout.

Replicas are written once. Importing this takes seconds, which `dcp_planners` avoids for whole tensors on one process.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from swift.checkpoint.coordination import agree
from swift.checkpoint.storage import FileChunk, Index, RankFile, StoredTensor, StoredTensors, first_missing, rank_file
from swift.errors import CheckpointError
from swift.processes.comms import Comms


@dataclass(frozen=True)
class _Agreed:
    """Plan that all processes have agreed on; it holds as long as no process has something else to save."""

    comms: Comms
    local: SavePlan
    own: SavePlan
    """What this process writes."""
    index: Index


_agreed: _Agreed | None = None
"""Of the last save: the next one saves the same tensors with other values."""


def assign_shards(tensors: Mapping[str, Any], comms: Comms) -> tuple[RankFile, Index]:
    """Agree on who writes what, and return this process's share, as views, and the whole index."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=comms.rank == 0)
    plan = _plan(planner, comms)
    share = RankFile(rank_file(comms.rank), {})
    for item in planner.finish_plan(plan.own).items:
        chunk = item.tensor_data.chunk if item.tensor_data else None
        if chunk is None or not math.prod(chunk.sizes):
            continue
        view = planner.resolve_data(item)
        assert isinstance(view, torch.Tensor)
        key = _key(item.index.fqn, tuple(chunk.offsets), tuple(chunk.sizes), plan.index[item.index.fqn].shape)
        share.tensors[key] = view.detach()
    return share, plan.index


def fill(tensors: Mapping[str, Any], stored: StoredTensors) -> None:
    """Fill this process's part of each tensor in place."""
    with warnings.catch_warnings():
        # Each process plans for itself; DCP would warn that no process group is used.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(
            dict(tensors),
            storage_reader=_IndexReader(stored),
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            no_dist=True,
        )


def _plan(planner: DefaultSavePlanner, comms: Comms) -> _Agreed:
    """Return the plan of the last save where it still holds on every process, else a new one."""
    global _agreed
    local: SavePlan | None = None
    error: CheckpointError | None = None
    try:
        local = planner.create_local_plan()
    except (TypeError, ValueError, RuntimeError) as cause:
        error = CheckpointError(f"Could not plan the save: {cause}.")
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
    index = _index_of(plans)
    missing = first_missing(index)
    if missing:
        raise CheckpointError(f"The tensors to save are incomplete: only {missing}.")
    _agreed = _Agreed(comms, local, plans[comms.rank], index)
    return _agreed


def _key(name: str, offsets: tuple[int, ...], sizes: tuple[int, ...], shape: tuple[int, ...]) -> str:
    return name if sizes == shape else f"{name}@{','.join(map(str, offsets))}"


def _index_of(plans: list[SavePlan]) -> Index:
    found: dict[str, tuple[torch.dtype, tuple[int, ...], list[FileChunk]]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            data, name = item.tensor_data, item.index.fqn
            if data is None:
                raise CheckpointError(f"{name} is not a tensor. Pass it as a fact instead.")
            shape = tuple(data.size)
            _, _, chunks = found.setdefault(name, (data.properties.dtype, shape, []))
            offsets, sizes = tuple(data.chunk.offsets), tuple(data.chunk.sizes)
            if math.prod(sizes):
                chunks.append(FileChunk(offsets, sizes, rank_file(rank), _key(name, offsets, sizes, shape)))
    return {name: StoredTensor(dtype, shape, tuple(chunks)) for name, (dtype, shape, chunks) in found.items()}


class _IndexReader(StorageReader):
    """Lets DCP's load planner read what the index describes."""

    def __init__(self, stored: StoredTensors) -> None:
        self._stored = stored
        self._chunks = {
            MetadataIndex(name, torch.Size(chunk.offsets)): chunk
            for name, tensor in stored.index.items()
            for chunk in tensor.chunks
        }

    def reset(self, checkpoint_id: object = None) -> None:
        pass

    def read_metadata(self) -> Metadata:
        """Return the index in DCP's terms."""
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
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
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
        return False
