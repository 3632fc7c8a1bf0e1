"""Master weights of Megatron's optimizers: the fp32 weights and the optimizer's moments, wherever they are stored.

Without the distributed optimizer every process has them for whole parameters; with it, for a flat range of each. In
fp32 they are the parameters themselves, below that copies of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from swift.contracts import Slot
from swift_backend_megatron.tensor_map import Tile, region_of

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's, as Megatron's own checkpoint formats name them."""


@dataclass(frozen=True)
class MasterShard:
    """The range of a flat parameter of which this process has the fp32 weights, and the optimizer's key for it."""

    start: int
    weight: torch.Tensor
    """One-dimensional, live."""
    key: torch.Tensor
    optimizer: Any


class MasterWeights:
    """The fp32 weights and moments of this process, by parameter."""

    def __init__(self, optimizer: Any, wrapped: list[Any], slots: Mapping[str, Slot]) -> None:
        self._wrapped = wrapped
        self.moments = tuple(name for name, slot in slots.items() if slot.shape == "like")
        """What the optimizer keeps for each element."""
        self.counts = "step" in slots
        """Whether it counts its updates: Megatron's Adam does, by groups."""
        self._shards: dict[int, MasterShard] = {}
        self.optimizers = [
            each for each in optimizer.chained_optimizers if not getattr(each, "is_stub_optimizer", False)
        ]
        for each in self.optimizers:
            self._shards.update(_ranges(each) if hasattr(each, "model_param_group_index_map") else _whole(each))

    def shard_of(self, parameter: torch.Tensor) -> MasterShard | None:
        """Return what is updated here of a parameter; None where it is frozen or other processes have it."""
        return self._shards.get(id(parameter))

    def write(self, tile: Tile, values: torch.Tensor) -> None:
        """Put values into the working copy and, where it is updated here, into the fp32 weights."""
        tensor = tile.tensor
        tensor.data.view(-1).narrow(0, tile.start, tile.numel).copy_(values.reshape(-1))
        shard = self.shard_of(tensor)
        if shard is not None and shard.weight.data_ptr() != tensor.data_ptr():
            for view, inside in overlapping(tile, shard, values):
                view.copy_(inside)

    def publish(self) -> None:
        """Make the working copies of all processes agree with the fp32 weights."""
        for each in self.optimizers:
            if hasattr(each, "_copy_main_params_to_model_params"):
                each._copy_main_params_to_model_params()
        for chunk in self._wrapped:
            if chunk.ddp_config.use_distributed_optimizer:
                chunk.start_param_sync(force_sync=True)

    def moment(self, shard: MasterShard, slot: str) -> torch.Tensor | None:
        """Return a moment of a shard, flat and live; None before the first update."""
        value = shard.optimizer.optimizer.state.get(shard.key, {}).get(slot)
        return None if value is None else value.view(-1)

    def make_moments(self) -> None:
        """Make moments of zero where there are none yet, to be loaded into."""
        for each in self.optimizers:
            adam = each.optimizer
            for group in adam.param_groups:
                for key in group["params"]:
                    slots = adam.state[key]
                    for slot in self.moments:
                        if slots.get(slot) is None:
                            slots[slot] = torch.zeros_like(key, dtype=torch.float32)

    @property
    def steps(self) -> int:
        """Updates that were made."""
        counted = [group.get("step", 0) for each in self.optimizers for group in each.optimizer.param_groups]
        return int(max(counted, default=0))

    @steps.setter
    def steps(self, count: int) -> None:
        for each in self.optimizers:
            for group in each.optimizer.param_groups:
                group["step"] = count


def overlapping(tile: Tile, shard: MasterShard, values: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield views of what the shard has of a box, with the same region of `values`, the box's."""
    for offset, view in tile.views(shard.weight, shard.start):
        inner = tuple(corner - own for corner, own in zip(offset, tile.offset, strict=True))
        yield view, values[region_of(inner, view.shape)]


def _ranges(optimizer: Any) -> Iterator[tuple[int, MasterShard]]:
    """Yield the ranges that the distributed optimizer has of each parameter."""
    for parameter, (group, index) in optimizer.model_param_group_index_map.items():
        main = optimizer.optimizer.param_groups[group]["params"][index]
        start = optimizer._get_model_param_range_map(parameter)["param"].start
        yield id(parameter), MasterShard(start, main.detach().view(-1), main, optimizer)


def _whole(optimizer: Any) -> Iterator[tuple[int, MasterShard]]:
    """Yield whole parameters, as optimizers have them that are not distributed."""
    for group in optimizer.param_groups:
        for main in group["params"]:
            yield id(main), MasterShard(0, main.detach().view(-1), main, optimizer)
    for models, mains in zip(
        getattr(optimizer, "float16_groups", ()), getattr(optimizer, "fp32_from_float16_groups", ()), strict=True
    ):
        for parameter, main in zip(models, mains, strict=True):
            yield id(parameter), MasterShard(0, main.detach().view(-1), main, optimizer)
