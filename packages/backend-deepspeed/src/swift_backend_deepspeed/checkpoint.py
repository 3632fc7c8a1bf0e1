"""The canonical checkpoint: every process hands over the runs of elements that it updates, as live views.

And the canonical stream of weights, of which each is gathered for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from swift.checkpoint import TensorSlices
from swift.contracts import CheckpointReader, CheckpointWriter, WeightStream
from swift.toolkit import (
    Piece,
    canonical_buffers,
    canonical_parameters,
    canonical_weights,
    model_name,
    optim_name,
    part_slices,
)
from swift_backend_deepspeed.partitions import Fragment, ZeRO3Nvme, make_slots
from swift_backend_deepspeed.shard import DeepSpeedState
from swift_backend_deepspeed.tensor_parallel import TensorShard, tensor_shard_of


def save(state: DeepSpeedState, writer: CheckpointWriter) -> None:
    """Weights and optimizer state under canonical names."""
    engine = state.engine
    writer.facts({"scaler": {"scale": float(engine.optimizer.loss_scale)} if engine.fp16_enabled() else {}})
    if isinstance(state.partitions, ZeRO3Nvme):
        writer.stream(_streamed(state, state.partitions))
        return
    tensors: dict[str, torch.Tensor] = {}
    for pieces, parameter in canonical_parameters(state.model):
        fragment = state.partitions.fragment(parameter)
        if fragment is not None or parameter.requires_grad:
            tensors.update(_tensors(state, pieces, parameter, fragment, counts=_step_of(state, fragment)))
        else:
            tensors.update(_frozen(state, pieces, parameter))
    writer.tensors(tensors | _buffers(state))


def _streamed(state: DeepSpeedState, partitions: ZeRO3Nvme) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield whole tensors one after the other, where there are no live views. Collective."""
    for pieces, parameter in canonical_parameters(state.model):
        if not parameter.requires_grad:
            yield from _frozen(state, pieces, parameter).items()
            continue
        fragment = partitions.fragment(parameter)
        assert fragment is not None
        count = _step_of(state, fragment)
        slots = partitions.optimizer.state.get(fragment.owner, {})
        held: dict[Callable[[str], str], torch.Tensor] = {model_name: fragment.values}
        if count is not None:
            held |= {partial(optim_name, slot=name): fragment.moment(slots, name) for name in state.moments}
        for named, values in held.items():
            whole = partitions.gather_values(parameter, values)
            for piece in pieces:
                yield named(piece.name), piece.view_of(whole)
            del whole  # before the next one is put together
        if count is not None and "step" in state.slots:
            yield from ((optim_name(piece.name, "step"), count) for piece in pieces)
    yield from _buffers(state).items()
    partitions.release()


def load(state: DeepSpeedState, reader: CheckpointReader) -> None:
    """Make the optimizer's state where there is none yet, fill fp32 weights and state, then working weights."""
    stored = set(reader.names())
    tensors: dict[str, torch.Tensor] = {}
    counts: dict[int, tuple[Fragment, torch.Tensor]] = {}
    for pieces, parameter in canonical_parameters(state.model):
        fragment = state.partitions.fragment(parameter)
        if fragment is None and not parameter.requires_grad:
            continue  # frozen: as it was read from the model
        has_state = any(optim_name(pieces[0].name, name) in stored for name in state.slots)
        count = torch.zeros((), dtype=torch.float32) if has_state else None
        if fragment is not None and count is not None:
            make_slots(state.partitions, fragment, state.slots)
            counts[id(fragment.owner)] = fragment, count
        tensors.update(_tensors(state, pieces, parameter, fragment, counts=count))
        if isinstance(state.partitions, ZeRO3Nvme):
            reader.tensors(tensors)  # while they are here
            tensors = {}
    tensors |= {name: buffer for name, buffer in _buffers(state).items() if name in stored}
    reader.tensors(tensors)
    for fragment, count in counts.values():
        slots = state.partitions.optimizer.state[fragment.owner]
        if "step" not in state.slots:
            continue
        slots["step"] = count if torch.is_tensor(slots["step"]) else int(count)
    state.partitions.refresh()
    state.partitions.release()
    scale = (reader.manifest.get("facts", {}).get("scaler") or {}).get("scale")
    if scale and state.engine.fp16_enabled():
        state.engine.optimizer.loss_scaler.cur_scale = scale


def _buffers(state: DeepSpeedState) -> dict[str, torch.Tensor]:
    """Return what training may change without an optimizer, replicated: biases of routers follow the load."""
    return {
        model_name(piece.name): piece.view_of(buffer)
        for pieces, buffer in canonical_buffers(state.model)
        if buffer.dtype == torch.float32
        for piece in pieces
    }


def stream(state: DeepSpeedState) -> WeightStream:
    """Yield every weight. Collective: every process must read the stream to its end."""
    yield from canonical_weights(state.model, state.gather)
    state.partitions.release()


def _tensors(
    state: DeepSpeedState,
    pieces: list[Piece],
    parameter: torch.Tensor,
    fragment: Fragment | None,
    *,
    counts: torch.Tensor | None,
) -> dict[str, torch.Tensor]:
    """Weights and moments of one parameter; of all its pieces, since every process must know of every tensor."""
    tensors: dict[str, torch.Tensor] = {}
    placement = parameter.shape, tensor_shard_of(parameter)
    slots: dict[str, Any] = {} if fragment is None else state.partitions.optimizer.state.get(fragment.owner, {})
    for piece in pieces:
        tensors[model_name(piece.name)] = _slices(
            piece, *placement, fragment, None if fragment is None else fragment.values
        )
        if counts is None:
            continue
        for name in state.moments:
            held = fragment.moment(slots, name) if fragment is not None and name in slots else None
            tensors[optim_name(piece.name, name)] = _slices(piece, *placement, fragment, held)
        if "step" in state.slots:
            tensors[optim_name(piece.name, "step")] = counts
    return tensors


def _slices(
    piece: Piece,
    shape: Sequence[int],
    tensor_shard: TensorShard | None,
    fragment: Fragment | None,
    held: torch.Tensor | None,
) -> TensorSlices:
    """Return the boxes of a tensor on disk that this process holds; `shape` is that of AutoTP's shard of it."""
    if fragment is None or held is None:
        return TensorSlices(piece.shape, [], dtype=torch.float32)
    if tensor_shard is None:
        return TensorSlices(
            piece.shape, part_slices(piece.shape, piece.start, fragment.start, held), dtype=torch.float32
        )
    slices = [
        (tuple(start + tensor_shard.start * (dim == tensor_shard.dim) for dim, start in enumerate(corner)), held_slice)
        for corner, held_slice in part_slices(shape, 0, fragment.start, held)
    ]
    return TensorSlices(piece.shape, slices, dtype=torch.float32)


def _step_of(state: DeepSpeedState, fragment: Fragment | None) -> torch.Tensor | None:
    """Return AdamW's step count, or None before the first update."""
    if state.step == 0:
        return None
    slots: list[dict[str, Any]] = list(state.partitions.optimizer.state.values())
    if fragment is not None:
        slots.insert(0, state.partitions.optimizer.state[fragment.owner])
    counted = next((each["step"] for each in slots if "step" in each), state.step)
    return torch.as_tensor(float(counted), dtype=torch.float32)


def _frozen(state: DeepSpeedState, pieces: list[Piece], parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a weight that nobody updates, whole: full training with `tuner.freeze`."""
    whole = state.gather(parameter).float()
    return {model_name(piece.name): piece.view_of(whole) for piece in pieces}
