"""Which of the tensors in a torch_dist checkpoint hold each of Megatron's parameters.

Megatron is asked: its model is laid out in one process and says for every parameter under which key it is saved, in
which shape, and where in it. Other layouts shard the same tensors otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift.config.sections import Config
from swift.contracts import ModelSource, RequestedRun, World
from swift.errors import UnsupportedLayout
from swift_backend_megatron import megatron_runtime, topology
from swift_backend_megatron.architectures import WITH_ENCODERS
from swift_backend_megatron.config import MegatronConfig
from swift_backend_megatron.tensor_map import TensorMap

SLOT = "optimizer.state.{}."
"""Before the key of a parameter, the key of what the optimizer keeps of it."""
MASTER = SLOT.format("param")
"""Weights in fp32, by the distributed optimizer."""
MASTERS = (SLOT.format("fp32_param"), MASTER)
"""By any optimizer."""


@dataclass(frozen=True)
class SavedShard:
    """A shard of one of Megatron's tensors on disk, and the range of the parameter that it belongs to."""

    key: str
    whole: tuple[int, ...]
    """Shape of the tensor on disk."""
    offset: tuple[int, ...]
    """In the tensor on disk."""
    leading: int
    """Dimensions that are only there on disk: layers, experts."""
    start: int
    """First element in the flat parameter."""
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SavedModel:
    """A model as it is stored in a checkpoint."""

    tensor_map: TensorMap
    shards: dict[int, list[SavedShard]]
    """By the id of the parameter or buffer, which `tensor_map` keeps alive."""
    objects: dict[str, Any]
    """What modules save that is no tensor, by the name of its file entry."""


def learn(source: ModelSource) -> SavedModel:
    """Lay a model out in one process, without its weights taking memory. No process group may be there."""
    from swift_backend_megatron.model import map_without_memory

    if source.config.model_type in WITH_ENCODERS:
        raise UnsupportedLayout(
            f"Megatron's own checkpoints of {source.config.model_type}, which has a vision encoder, are not supported.",
            hint="swift's checkpoints of any backend are Hugging Face's files: train from them, or export to hf.",
        )
    options = MegatronConfig()
    task = getattr(source, "task", "causal_lm")
    config = Config.model_validate(
        {"model": {"task": task}, "tuner": {"kind": "full"}, "backend": {"name": "megatron"}}
    )
    requested = RequestedRun(config=config, backend_options=options, folder=Path(), world=World(), say=lambda _: None)
    run = requested.opened(topology.setup(requested)).prepared(0, lambda _: 0.0)
    try:
        chunk, tensor_map = map_without_memory(run, source)
        with megatron_runtime.active():
            shards, objects = _saved_shards(chunk)
    finally:
        topology.teardown(run)
    return SavedModel(tensor_map, shards, objects)


def _saved_shards(chunk: Any) -> tuple[dict[int, list[SavedShard]], dict[str, Any]]:
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories

    state = chunk.sharded_state_dict()
    apply_factories(state)
    parameters = {each.untyped_storage()._cdata: each for each in (*chunk.parameters(), *chunk.buffers())}
    shards: dict[int, list[SavedShard]] = {}
    objects: dict[str, Any] = {}
    for each in nested_values(state):
        if isinstance(each, ShardedObject):
            objects[each.unique_key] = each.data
        if not isinstance(each, ShardedTensor) or each.data is None:
            continue
        owner = parameters.get(each.data.untyped_storage()._cdata)
        if owner is not None:
            shard = SavedShard(
                key=each.key,
                whole=tuple(each.global_shape),
                offset=tuple(each.global_offset),
                leading=each.prepend_axis_num,
                start=each.data.storage_offset(),
                shape=tuple(each.local_shape),
            )
            shards.setdefault(id(owner), []).append(shard)
    return shards, objects
