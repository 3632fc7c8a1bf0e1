"""The canonical checkpoint: every process hands over the boxes that it holds, as live views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from swift.checkpoint import Boxes
from swift.toolkit import model_name, optim_name
from swift_backend_megatron import engine
from swift_backend_megatron.masters import MOMENTS

if TYPE_CHECKING:
    from swift.contracts import CheckpointReader, CheckpointWriter
    from swift_backend_megatron.layout import Entry, Offset, Place
    from swift_backend_megatron.shard import MegatronState


def save(state: MegatronState, writer: CheckpointWriter) -> None:
    """Weights and optimizer state under canonical names."""
    with engine.active(), torch.no_grad():
        tensors: dict[str, torch.Tensor] = {}
        for name, entry in _kept(state):
            held = [(place, offset, view) for place, offset, view in boxes_of(state, entry) if not place.twin]
            tensors[model_name(name)] = Boxes(
                entry.shape,
                [(offset, view + place.shift if place.shift else view) for place, offset, view in held],
                dtype=torch.float32,
            )
            for slot in MOMENTS:
                moments = [(o, view) for place, o, view in boxes_of(state, entry, slot) if not place.twin]
                if moments:
                    tensors[optim_name(name, slot)] = Boxes(entry.shape, moments, dtype=torch.float32)
                    tensors[optim_name(name, "step")] = torch.tensor(float(state.masters.steps))
        writer.tensors(tensors)
        writer.facts({"scaler": _scaler(state)})


def load(state: MegatronState, reader: CheckpointReader) -> None:
    """Fill the fp32 weights and the moments in place, and make working copies of them."""
    with engine.active(), torch.no_grad():
        stored = set(reader.names())
        counted = sorted(name for name in stored if name.startswith("optim.") and name.endswith(".step"))
        if counted:
            state.masters.make_state()
        loaded = _Loaded()
        for name, entry in _kept(state):
            loaded.add(model_name(name), entry, boxes_of(state, entry))
            for slot in MOMENTS:
                if optim_name(name, slot) in stored:
                    loaded.add(optim_name(name, slot), entry, boxes_of(state, entry, slot), shifted=False)
        reader.tensors(loaded.tensors)
        loaded.finish()
        if counted:
            # Adam counts for all weights at once here; those that began together have counted alike.
            state.masters.steps = int(reader.read(counted[0]))
        state.masters.publish()
        scaler = reader.manifest.get("facts", {}).get("scaler")
        if scaler:
            _set_scaler(state, scaler)


class _Loaded:
    """Tensors to be read, and what has to be copied afterwards: a box can be read into one place only."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._copies: list[tuple[torch.Tensor, torch.Tensor, float]] = []

    def add(
        self, name: str, entry: Entry, held: Iterator[tuple[Place, Offset, torch.Tensor]], *, shifted: bool = True
    ) -> None:
        boxes: dict[Offset, torch.Tensor] = {}
        for place, offset, view in held:
            shift = place.shift if shifted else 0.0
            known = boxes.get(offset)
            if known is not None and known.shape == view.shape:
                self._copies.append((view, known, shift))
            elif shift:
                boxes[offset] = torch.empty_like(view)
                self._copies.append((view, boxes[offset], shift))
            else:
                assert known is None, f"{name}: boxes of different shapes at {offset}"
                boxes[offset] = view
        self.tensors[name] = Boxes(entry.shape, boxes.items(), dtype=torch.float32)

    def finish(self) -> None:
        for view, read, shift in self._copies:
            view.copy_(read - shift if shift else read)


def _kept(state: MegatronState) -> Iterator[tuple[str, Entry]]:
    """What belongs in a checkpoint: all weights or, where adapters are trained, the adapters."""
    wanted = state.built.adapter_tensors
    for name, entry in state.layout.items():
        if entry.trained and (name in wanted or not wanted):
            yield name, entry


def boxes_of(
    state: MegatronState, entry: Entry, slot: str | None = None
) -> Iterator[tuple[Place, Offset, torch.Tensor]]:
    """What this process has of the fp32 weights of a tensor, or of a moment."""
    for place in entry.places:
        held = state.masters.held(place.tensor)
        if held is not None:
            flat = held.weight if slot is None else state.masters.state(held, slot)
            if flat is not None:
                yield from ((place, offset, view) for offset, view in place.of(flat, held.start))
        elif slot is None and not place.tensor.requires_grad:
            # Frozen: the working copy is all there is.
            frozen = place.tensor.detach().reshape(-1).float()
            yield from ((place, offset, view) for offset, view in place.of(frozen))


def _scaler(state: MegatronState) -> dict[str, Any]:
    """The scale of fp16's losses, as torch's own scaler writes it."""
    scaler = _scaler_of(state)
    if scaler is None:
        return {}
    return {
        "scale": float(scaler.scale),
        "growth_factor": float(scaler.growth_factor),
        "backoff_factor": float(scaler.backoff_factor),
        "growth_interval": scaler.growth_interval,
        "_growth_tracker": scaler._growth_tracker,
    }


def _set_scaler(state: MegatronState, saved: dict[str, Any]) -> None:
    for each in state.masters.engines:
        scaler = getattr(each, "grad_scaler", None)
        if scaler is not None and state.config.fp16:
            scaler._scale = torch.full_like(scaler.scale, saved["scale"])
            scaler._growth_tracker = saved["_growth_tracker"]


def _scaler_of(state: MegatronState) -> Any:
    scalers = [getattr(each, "grad_scaler", None) for each in state.masters.engines]
    return scalers[0] if scalers and state.config.fp16 else None
