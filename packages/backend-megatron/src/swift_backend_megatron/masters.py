"""What Megatron's optimizers update: the fp32 weights and Adam's moments, wherever they lie.

Without the distributed optimizer every process has them for whole parameters; with it, for a flat range of each. In
fp32 they are the parameters themselves, below that copies of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from swift_backend_megatron.layout import Place

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Held:
    """The range of a flat parameter of which this process has the fp32 weights, and the optimizer's key for it."""

    start: int
    weight: torch.Tensor
    """One-dimensional, live."""
    key: torch.Tensor
    optimizer: Any


class Masters:
    """By parameter."""

    def __init__(self, optimizer: Any, wrapped: list[Any]) -> None:
        self._optimizer = optimizer
        self._wrapped = wrapped
        self._held: dict[int, Held] = {}
        self.engines = [each for each in optimizer.chained_optimizers if not getattr(each, "is_stub_optimizer", False)]
        for engine in self.engines:
            self._held.update(_ranges(engine) if hasattr(engine, "model_param_group_index_map") else _whole(engine))

    def held(self, tensor: torch.Tensor) -> Held | None:
        """None where nothing of a parameter is updated here: it is frozen, or other processes have it."""
        return self._held.get(id(tensor))

    def write(self, place: Place, values: torch.Tensor) -> None:
        """Put values into the working copy and, where it is updated here, into the fp32 weights."""
        tensor = place.tensor
        tensor.data.view(-1).narrow(0, place.start, place.numel).copy_(values.reshape(-1))
        held = self.held(tensor)
        if held is not None and held.weight.data_ptr() != tensor.data_ptr():
            for _, view, part in overlapping(place, held, values):
                view.copy_(part)

    def publish(self) -> None:
        """Make the working copies of all processes agree with the fp32 weights."""
        for engine in self.engines:
            if hasattr(engine, "_copy_main_params_to_model_params"):
                engine._copy_main_params_to_model_params()
        for chunk in self._wrapped:
            if chunk.ddp_config.use_distributed_optimizer:
                chunk.start_param_sync(force_sync=True)

    def state(self, held: Held, slot: str) -> torch.Tensor | None:
        """A moment of what is held, flat and live; None before the first update."""
        value = held.optimizer.optimizer.state.get(held.key, {}).get(slot)
        return None if value is None else value.view(-1)

    def make_state(self) -> None:
        """Moments of zero where there are none yet, to be loaded into."""
        for engine in self.engines:
            optimizer = engine.optimizer
            for group in optimizer.param_groups:
                for key in group["params"]:
                    slots = optimizer.state[key]
                    for slot in MOMENTS:
                        slots.setdefault(slot, torch.zeros_like(key, dtype=torch.float32))

    @property
    def steps(self) -> int:
        """Updates that were made."""
        counted = [group.get("step", 0) for engine in self.engines for group in engine.optimizer.param_groups]
        return int(max(counted, default=0))

    @steps.setter
    def steps(self, count: int) -> None:
        for engine in self.engines:
            for group in engine.optimizer.param_groups:
                group["step"] = count


def overlapping(place: Place, held: Held, whole: torch.Tensor) -> Iterator[tuple[tuple[int, ...], torch.Tensor, Any]]:
    """Boxes of what is held of a place, with the same part of `whole`, the place's values."""
    for offset, view in place.of(held.weight, held.start):
        inner = tuple(corner - own for corner, own in zip(offset, place.offset, strict=True))
        region = tuple(slice(start, start + size) for start, size in zip(inner, view.shape, strict=True))
        yield offset, view, whole[region]


def _ranges(engine: Any) -> Iterator[tuple[int, Held]]:
    """Of the distributed optimizer."""
    for parameter, (group, index) in engine.model_param_group_index_map.items():
        main = engine.optimizer.param_groups[group]["params"][index]
        start = engine._get_model_param_range_map(parameter)["param"].start
        yield id(parameter), Held(start, main.detach().view(-1), main, engine)


def _whole(engine: Any) -> Iterator[tuple[int, Held]]:
    """Of the optimizers that every process has all of."""
    for group in engine.optimizer.param_groups:
        for main in group["params"]:
            yield id(main), Held(0, main.detach().view(-1), main, engine)
    for models, mains in zip(
        getattr(engine, "float16_groups", ()), getattr(engine, "fp32_from_float16_groups", ()), strict=True
    ):
        for parameter, main in zip(models, mains, strict=True):
            yield id(parameter), Held(0, main.detach().view(-1), main, engine)
