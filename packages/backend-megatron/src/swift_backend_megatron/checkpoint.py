"""The canonical checkpoint: every process hands over the boxes that it has, as live views.

And the canonical stream of weights, each of which is assembled from the boxes of all processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from swift.checkpoint import TensorSlices
from swift.contracts import CheckpointReader, CheckpointWriter, WeightStream
from swift.toolkit import as_plain_lora, model_name, optim_name
from swift_backend_megatron import megatron_runtime
from swift_backend_megatron.shard import MegatronState
from swift_backend_megatron.tensor_map import MappedTensor, Offset, Tile, region_of

Extent = tuple["Offset", "Offset"]


def save(state: MegatronState, writer: CheckpointWriter) -> None:
    """Weights and optimizer state under canonical names."""
    with megatron_runtime.active(), torch.no_grad():
        tensors: dict[str, torch.Tensor] = {}
        for name, mapped in _saved(state):
            held = [(tile, offset, view) for tile, offset, view in views_of(state, mapped) if not tile.replica]
            tensors[model_name(name)] = TensorSlices(
                mapped.shape,
                [(offset, view + tile.shift if tile.shift else view) for tile, offset, view in held],
                dtype=torch.float32,
            )
            for slot in state.masters.moments:
                moments = [(o, view) for tile, o, view in views_of(state, mapped, slot) if not tile.replica]
                if moments:
                    tensors[optim_name(name, slot)] = TensorSlices(mapped.shape, moments, dtype=torch.float32)
                    if state.masters.counts:
                        tensors[optim_name(name, "step")] = torch.tensor(float(state.masters.steps))
        writer.tensors(tensors)
        writer.facts({"scaler": _scaler(state)})


def load(state: MegatronState, reader: CheckpointReader) -> None:
    """Fill the fp32 weights and the moments in box, and make working copies of them."""
    with megatron_runtime.active(), torch.no_grad():
        stored = set(reader.names())
        ends = tuple(f".{slot}" for slot in state.masters.moments)
        if any(name.startswith("optim.") and name.endswith(ends) for name in stored):
            state.masters.make_moments()
        loaded = _Loaded()
        for name, mapped in _saved(state):
            if model_name(name) not in stored and not (mapped.trained and mapped.tiles):
                continue  # a buffer
            loaded.add(model_name(name), mapped, views_of(state, mapped))
            for slot in state.masters.moments:
                if optim_name(name, slot) in stored:
                    loaded.add(optim_name(name, slot), mapped, views_of(state, mapped, slot), shifted=False)
        reader.tensors(loaded.tensors)
        loaded.finish()
        counted = sorted(name for name in stored if name.startswith("optim.") and name.endswith(".step"))
        if counted and state.masters.counts:
            # Adam counts for all weights at once here; those that began together have counted alike.
            state.masters.steps = int(reader.read(counted[0]))
        state.masters.publish()
        scaler = reader.manifest.get("facts", {}).get("scaler")
        if scaler:
            _set_scaler(state, scaler)


class _Loaded:
    """Tensors to be read, and what has to be copied afterwards: a box can be read to one destination only."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._copies: list[tuple[torch.Tensor, torch.Tensor, float]] = []

    def add(
        self,
        name: str,
        mapped: MappedTensor,
        held: Iterator[tuple[Tile, Offset, torch.Tensor]],
        *,
        shifted: bool = True,
    ) -> None:
        tiles: dict[Offset, torch.Tensor] = {}
        for tile, offset, view in held:
            shift = tile.shift if shifted else 0.0
            known = tiles.get(offset)
            if known is not None and known.shape == view.shape:
                self._copies.append((view, known, shift))
            elif shift:
                tiles[offset] = torch.empty_like(view)
                self._copies.append((view, tiles[offset], shift))
            else:
                assert known is None, f"{name}: tiles of different shapes at {offset}"
                tiles[offset] = view
        self.tensors[name] = TensorSlices(mapped.shape, tiles.items(), dtype=torch.float32)

    def finish(self) -> None:
        for view, read, shift in self._copies:
            view.copy_(read - shift if shift else read)


def _saved(state: MegatronState) -> Iterator[tuple[str, MappedTensor]]:
    """Yield what belongs in a checkpoint: weights and biases of routers or, where adapters are trained, those alone."""
    adapters = state.built.adapter_tensors
    for name, mapped in state.tensor_map.items():
        if name in adapters or not adapters:
            yield name, mapped


def views_of(
    state: MegatronState, mapped: MappedTensor, slot: str | None = None
) -> Iterator[tuple[Tile, Offset, torch.Tensor]]:
    """Yield what this process has of the fp32 weights of a tensor, or of a moment."""
    for tile in mapped.tiles:
        shard = state.masters.shard_of(tile.tensor)
        if shard is not None:
            flat = shard.weight if slot is None else state.masters.moment(shard, slot)
            if flat is not None:
                yield from ((tile, offset, view) for offset, view in tile.views(flat, shard.start))
        elif slot is None and not tile.tensor.requires_grad:
            # Frozen: the working copy is all there is.
            frozen = tile.tensor.detach().reshape(-1).float()
            yield from ((tile, offset, view) for offset, view in tile.views(frozen))


def _scaler(state: MegatronState) -> dict[str, Any]:
    """Return the scale of fp16's losses, as torch's own scaler writes it."""
    scalers = _scalers(state)
    if not scalers:
        return {}
    scaler = scalers[0]
    return {
        "scale": float(scaler.scale),
        "growth_factor": float(scaler.growth_factor),
        "backoff_factor": float(scaler.backoff_factor),
        "growth_interval": scaler.growth_interval,
        "_growth_tracker": scaler._growth_tracker,
    }


def _set_scaler(state: MegatronState, saved: dict[str, Any]) -> None:
    for scaler in _scalers(state):
        scaler._scale = torch.full_like(scaler.scale, saved["scale"])
        scaler._growth_tracker = saved["_growth_tracker"]


def _scalers(state: MegatronState) -> list[Any]:
    return [each.grad_scaler for each in state.masters.optimizers] if state.config.fp16 else []


def stream(state: MegatronState) -> WeightStream:
    """Yield every tensor, whole, on every process. Collective: all read it to its end."""
    yield from as_plain_lora(_whole_tensors(state))


def _whole_tensors(state: MegatronState) -> WeightStream:
    streamed = state.built.adapter_tensors or state.tensor_map.keys()
    owned = _owned(state)
    for name, mapped in state.tensor_map.items():
        if name in streamed:
            yield name, _whole(state, name, mapped, owned)


@torch.no_grad()
def _whole(state: MegatronState, name: str, mapped: MappedTensor, owned: set[tuple[str, Extent]]) -> torch.Tensor:
    whole = torch.zeros(mapped.shape, dtype=torch.float32, device=state.slicer.device)
    with megatron_runtime.active():
        for offset, view, shift in _views(state, mapped):
            if (name, (offset, tuple(view.shape))) in owned:
                whole[region_of(offset, view.shape)] = view + shift if shift else view
    # One process has each element and the others a zero: added up as whole numbers, every bit stays as it is.
    dist.all_reduce(whole.view(torch.int32) if whole.ndim else whole)
    return whole


def _views(state: MegatronState, mapped: MappedTensor) -> Iterator[tuple[Offset, torch.Tensor, float]]:
    for tile, offset, view in views_of(state, mapped):
        if not tile.replica:
            yield offset, view, tile.shift


def _owned(state: MegatronState) -> set[tuple[str, Extent]]:
    """Return the boxes that no process of lower rank has as well. Collective the first time."""
    if state.owned is not None:
        return state.owned
    with megatron_runtime.active():
        own = {
            (name, (offset, tuple(view.shape)))
            for name, mapped in state.tensor_map.items()
            for offset, view, _ in _views(state, mapped)
        }
    everyone: list[set[tuple[str, Extent]]] = [set() for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, own)
    for lower in everyone[: dist.get_rank()]:
        own -= lower
    state.owned = own
    return own
