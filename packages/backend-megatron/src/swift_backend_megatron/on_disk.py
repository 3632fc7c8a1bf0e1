"""Which of the tensors in a torch_dist checkpoint hold each of Megatron's parameters.

Megatron is asked: its model is laid out in one process and says for every parameter under which key it is saved, in
which shape, and where in it. Other layouts cut the same tensors otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from swift.config.sections import Config
from swift.contracts import Run, World
from swift_backend_megatron import engine, topology
from swift_backend_megatron.config import MegatronConfig

if TYPE_CHECKING:
    from swift.contracts import ModelSource
    from swift_backend_megatron.layout import Layout

SLOT = "optimizer.state.{}."
"""Before the key of a parameter, the key of what the optimizer keeps of it."""
MASTER = SLOT.format("param")
"""Weights in fp32, by the distributed optimizer."""
MASTERS = (SLOT.format("fp32_param"), MASTER)
"""By any optimizer."""


@dataclass(frozen=True)
class Piece:
    """A part of one of Megatron's tensors on disk, and of the parameter of the one process that it belongs to."""

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
class OnDisk:
    """A model as it lies in a checkpoint."""

    layout: Layout
    pieces: dict[int, list[Piece]]
    """By the id of the parameter or buffer, which `layout` keeps alive."""
    objects: dict[str, Any]
    """What modules save besides tensors, by the name of its file entry."""


def learn(source: ModelSource) -> OnDisk:
    """Lay a model out in one process, without its weights taking memory. No process group may be there."""
    from swift_backend_megatron.model import layout_alone

    options = MegatronConfig()
    config = Config.model_validate({"tuner": {"kind": "full"}, "backend": {"name": "megatron"}})
    run = Run(config=config, backend_options=options, folder=Path(), world=World(), say=lambda _: None)
    run.topology = topology.setup(run)
    try:
        chunk, layout = layout_alone(run, source)
        with engine.active():
            pieces, objects = _asked(chunk)
    finally:
        topology.teardown()
    return OnDisk(layout, pieces, objects)


def _asked(chunk: Any) -> tuple[dict[int, list[Piece]], dict[str, Any]]:
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, apply_factories

    state = chunk.sharded_state_dict()
    apply_factories(state)
    owners = {each.untyped_storage()._cdata: each for each in _tensors(chunk)}
    pieces: dict[int, list[Piece]] = {}
    objects: dict[str, Any] = {}
    for each in nested_values(state):
        if isinstance(each, ShardedObject):
            objects[each.unique_key] = each.data
        if not isinstance(each, ShardedTensor) or each.data is None:
            continue
        owner = owners.get(each.data.untyped_storage()._cdata)
        if owner is not None:
            piece = Piece(
                key=each.key,
                whole=tuple(each.global_shape),
                offset=tuple(each.global_offset),
                leading=each.prepend_axis_num,
                start=each.data.storage_offset(),
                shape=tuple(each.local_shape),
            )
            pieces.setdefault(id(owner), []).append(piece)
    return pieces, objects


def _tensors(chunk: Any) -> Iterator[torch.Tensor]:
    yield from chunk.parameters()
    yield from chunk.buffers()
