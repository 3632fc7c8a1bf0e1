"""A torch_dist checkpoint of Megatron, written for `swift convert --to megatron`.

The tensors are those that Megatron writes with its distributed optimizer in the form `fully_reshardable`, which any
layout loads. One of them is in memory at a time: torch's own writer asks for each in turn.
"""

from __future__ import annotations

import io
import json
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from swift.config.own_options import AdamOptions
from swift.config.sections import OptimSection, ScheduleOptions
from swift.contracts import TrainedState
from swift.errors import CheckpointError
from swift.toolkit import progress
from swift_backend_megatron.masters import MOMENTS
from swift_backend_megatron.on_disk import MASTER, SLOT, SavedModel, SavedShard, learn
from swift_backend_megatron.tensor_map import Tile

_DATA = "__0_0.distcp"
TRACKER = "latest_checkpointed_iteration.txt"
_FORMAT = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


def write_native(state: TrainedState, folder: Path) -> None:
    """Write what Megatron's `--load FOLDER` resumes from."""
    if state.adapter is not None:
        raise CheckpointError(
            "Megatron's checkpoints hold whole weights, and this one holds an adapter.",
            hint="Merge it first: swift export RUN --to hf --out MERGED",
        )
    if state.total_steps:
        decay_style(state.optim)
    step = folder / f"iter_{state.step:07d}"
    step.mkdir()
    planner = _Planner(_Tensors(state, learn(state.source)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of there being one process
        save({}, storage_writer=_TorchDistWriter(step), planner=planner, no_dist=True)
    torch.save(_common(state, experts=planner.tensors.has_experts), step / "common.pt")
    (step / "metadata.json").write_text(json.dumps(_FORMAT), encoding="utf-8")
    (folder / TRACKER).write_text(str(state.step), encoding="utf-8")


class _TorchDistWriter(FileSystemWriter):
    """torch's, but for the loop over tensors, which would keep those that it has written."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = []
        with Path(self.path, _DATA).open("wb") as stream:
            for item in plan.items:
                begin = stream.tell()
                content = planner.resolve_data(item)
                if isinstance(content, io.BytesIO):
                    stream.write(content.getbuffer())
                else:
                    torch.save(content, stream)
                length = stream.tell() - begin
                results.append(WriteResult(item.index, length, _StorageInfo(_DATA, begin, length)))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done


@dataclass(frozen=True)
class _SavedChunk:
    """One chunk of one tensor on disk."""

    key: str
    """With the prefix of its slot."""
    slot: str
    parameter: int
    shard: SavedShard

    @property
    def tile(self) -> ChunkStorageMetadata:
        sizes = torch.Size((*(1,) * self.shard.leading, *self.shard.shape))
        return ChunkStorageMetadata(offsets=torch.Size(self.shard.offset), sizes=sizes)


class _Tensors:
    """All that is written, assembled from Hugging Face tensors when it is asked for."""

    def __init__(self, state: TrainedState, on_disk: SavedModel) -> None:
        self._state = state
        self._on_disk = on_disk
        self._tiles: dict[int, dict[str, list[Tile]]] = defaultdict(lambda: defaultdict(list))
        self._trained: set[int] = set()
        for name, entry in on_disk.tensor_map.items():
            for tile in entry.tiles:
                self._tiles[id(tile.tensor)][name].append(tile)
                if entry.trained:
                    self._trained.add(id(tile.tensor))
        self._last: tuple[tuple[int, str], torch.Tensor] | None = None

    @property
    def objects(self) -> Mapping[str, Any]:
        """Return what is written that is no tensor."""
        return self._on_disk.objects

    @property
    def has_experts(self) -> bool:
        """Whether there are tensors of layers and experts."""
        return any(shard.leading > 1 for shards in self._on_disk.shards.values() for shard in shards)

    def chunks(self) -> Iterator[_SavedChunk]:
        """Yield one parameter after the other: its weight, and what the optimizer keeps of it."""
        kept = [("weight", MASTER), *((slot, SLOT.format(slot)) for slot in MOMENTS)] if self._state.slots() else []
        for parameter, shards in self._on_disk.shards.items():
            for slot, prefix in [("weight", ""), *(kept if parameter in self._trained else [])]:
                yield from (_SavedChunk(prefix + shard.key, slot, parameter, shard) for shard in shards)

    def read(self, chunk: _SavedChunk) -> torch.Tensor:
        """Return the values of a chunk, alone in their memory."""
        first, sizes = chunk.shard.start, chunk.tile.sizes
        whole = self._parameter(chunk.parameter, chunk.slot)
        values = whole[first : first + sizes.numel()].view(sizes)
        return values if values.numel() == whole.numel() else values.clone()

    def _parameter(self, parameter: int, slot: str) -> torch.Tensor:
        """Return a whole parameter, flat; the last one is kept, since its chunks come one after the other."""
        if self._last is not None and self._last[0] == (parameter, slot):
            return self._last[1]
        self._last = None
        tiles = self._tiles[parameter]
        flat = torch.zeros(next(iter(tiles.values()))[0].tensor.numel())  # the padding of a vocabulary stays zero
        for name, own in tiles.items():
            whole = self._state.read_stored(name, slot)
            for tile in own:
                target = flat[tile.start : tile.start + tile.numel].view(tile.sizes)
                target.copy_(whole[tile.region])
                if slot == "weight" and tile.shift:
                    target -= tile.shift
            del whole
        self._last = (parameter, slot), flat
        return flat


class _Planner(SavePlanner):
    """Lists for torch's writer what there is, and hands it one chunk at a time."""

    def __init__(self, tensors: _Tensors) -> None:
        self.tensors = tensors
        self._chunks: dict[MetadataIndex, _SavedChunk] = {}
        self._bar: Iterator[Any] = iter(())

    def set_up_planner(self, *_: Any, **__: Any) -> None:
        """There is no state dict."""

    def create_local_plan(self) -> SavePlan:
        items = [WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO) for key in self.tensors.objects]
        counts: Counter[str] = Counter()
        for chunk in self.tensors.chunks():
            index = MetadataIndex(chunk.key, chunk.tile.offsets, counts[chunk.key])
            counts[chunk.key] += 1
            self._chunks[index] = chunk
            size = torch.Size(chunk.shard.whole)
            data = TensorWriteData(chunk.tile, TensorProperties(dtype=torch.float32), size)
            items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        found: dict[str, Any] = {key: BytesStorageMetadata() for key in self.tensors.objects}
        for chunk in self._chunks.values():
            size = torch.Size(chunk.shard.whole)
            empty = TensorStorageMetadata(TensorProperties(dtype=torch.float32), size, [])
            found.setdefault(chunk.key, empty).chunks.append(chunk.tile)
        return all_plans, Metadata(found)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        # Called once, before writing begins: the writer asks in the order of the plan.
        self._bar = iter(progress(self._chunks, "Converting", total=len(self._chunks)))
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.type == WriteItemType.BYTE_IO:
            content = io.BytesIO()
            torch.save([self.tensors.objects[write_item.index.fqn]], content)  # one process of one
            content.seek(0)
            return content
        next(self._bar, None)
        return self.tensors.read(self._chunks[write_item.index])


def _common(state: TrainedState, *, experts: bool) -> dict[str, Any]:
    """Return what is no tensor: how far training is, and the optimizer's groups."""
    common: dict[str, Any] = {"iteration": state.step, "checkpoint_version": 3.0}
    if state.slots():
        common["optimizer"] = _optimizer(state, experts=experts)
    if state.rows_per_step and state.total_steps:
        common["opt_param_scheduler"] = _scheduler(state)
    return common


def _optimizer(state: TrainedState, *, experts: bool) -> dict[Any, Any]:
    """Return one optimizer, and where there are experts another one for those that are distributed."""

    def groups(*, expert: bool) -> list[dict[str, Any]]:
        return [_group(state, decay=decay, expert=expert) for decay in (1.0, 0.0)]

    def distributed(*, expert: bool) -> dict[str, Any]:
        form = "fully_reshardable"
        return {"optimizer": {"param_groups": groups(expert=expert)}, "param_state_sharding_type": form}

    if experts:
        return {0: distributed(expert=False), 1: distributed(expert=True)}
    # Next to it what the optimizer of training in fp32 looks for, which is not distributed.
    plain = {"param_groups": groups(expert=False), "state": {"common_step": torch.tensor(float(state.step))}}
    return {**distributed(expert=False), **plain}


def _group(state: TrainedState, *, decay: float, expert: bool) -> dict[str, Any]:
    optim, adam = state.optim, state.optim.options(AdamOptions)
    return {
        "wd_mult": decay,
        "lr_mult": 1.0,
        "is_expert_parallel": expert,
        "is_decoupled_lr": False,
        "default_config": True,
        "lr_scale": 1.0,
        "lr": state.learning_rate,
        "max_lr": state.peak,
        "min_lr": state.min_lr,
        "betas": (adam.beta1, adam.beta2),
        "eps": adam.eps,
        "weight_decay": optim.weight_decay * decay,
        "step": state.step,
    }


_DECAY_STYLES = {
    "cosine": "cosine",
    "linear": "linear",
    "constant": "constant",
    "wsd": "WSD",
    "warmup_stable_decay": "WSD",
    "inverse_sqrt": "inverse-square-root",
}


def decay_style(optim: OptimSection) -> str:
    """Return Megatron's name of a schedule; one that Megatron-LM does not have is refused."""
    options = optim.schedule_options or ScheduleOptions()
    if optim.schedule == "polynomial" and options.power == 1.0:
        return "linear"
    if optim.schedule not in _DECAY_STYLES or options.num_cycles not in (None, 0.5):
        waves = "" if options.num_cycles is None else f" with num_cycles {options.num_cycles:g}"
        raise CheckpointError(
            f"Megatron-LM does not have this run's schedule, {optim.schedule}{waves}.",
            hint="Export its weights: swift export RUN --to hf. Or resume it in swift: "
            "swift sft --resume_from_checkpoint RUN",
        )
    return _DECAY_STYLES[optim.schedule]


def _scheduler(state: TrainedState) -> dict[str, Any]:
    """Return the schedule's state, which counts samples."""
    optim, rows = state.optim, state.rows_per_step
    return {
        "max_lr": state.peak,
        "min_lr": state.min_lr,
        "lr_warmup_steps": state.warmup_steps * rows,
        "num_steps": state.step * rows,
        "lr_decay_steps": state.total_steps * rows,
        "lr_decay_style": decay_style(optim),
        "start_wd": optim.weight_decay,
        "end_wd": optim.weight_decay,
        "wd_incr_style": "constant",
        "wd_incr_steps": state.total_steps * rows,
    }
