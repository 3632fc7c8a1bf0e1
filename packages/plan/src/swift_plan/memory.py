"""Peak memory of the process that has the most, by term: weights and their state, activations, the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from swift.contracts import LayerSizes, LocalWeights, ProcessLayout
from swift_plan.shape import ModelShape
from swift_plan.workload import TrainedCount, Workload

if TYPE_CHECKING:
    from swift.contracts import Run
    from swift.planning import PlannedBackend

_LOGITS = 2 * 256 * 2**20
"""Bytes of a chunk of logits and of its gradient, at most: the loss never has those of all tokens."""


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline, with all that it holds."""

    weights: LocalWeights
    layers: int
    in_flight: float
    """Micro-batches whose activations it keeps at once, in units of all of its layers."""
    has_head: bool


def split(layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Return the layers of each stage, fewer where the ends are; () where all can have the same number."""
    count = pp * vpp
    missing = -layers % count
    if not missing:
        return ()
    sizes = [(layers + missing) // count] * count
    for turn in range(missing):
        sizes[turn // 2 if turn % 2 else -1 - turn // 2] -= 1
    return tuple(sizes)


class StagesOf:
    """Counts what the stages of a pipeline hold."""

    def __init__(self, shape: ModelShape, trained: TrainedCount, workload: Workload, slot_bytes: float) -> None:
        self.shape, self.trained, self.workload, self.slot_bytes = shape, trained, workload, slot_bytes
        self._counted: dict[Any, LocalWeights] = {}

    def under(self, layout: ProcessLayout, sizes: Sequence[int] = ()) -> list[Stage]:
        """Return the stages that may have the most: the first, the last, and the second where that has more layers."""
        pp, vpp, shape = layout.pp, layout.vpp, self.shape
        layers = [sum(sizes[stage::pp]) for stage in range(pp)] if sizes else [ceil(shape.layers / pp)] * pp
        if pp == 1:
            ends = (1.0, 0.0 if shape.tied else 1.0)
            return [Stage(self._weights(layout, layers[0], ends), layers[0], 1.0, has_head=True)]
        found = [
            Stage(self._weights(layout, layers[0], (1.0, 0.0)), layers[0], pp + (pp - 1) * (vpp > 1) / vpp, False),
            Stage(
                self._weights(layout, layers[-1], (0.0, 1.0), last=True),
                layers[-1],
                1.0 + (pp - 1) * (vpp > 1) / vpp,
                True,
            ),
        ]
        if layers[1] > layers[0] and pp > 2:
            in_flight = pp - 1 + (pp - 1) * (vpp > 1) / vpp
            found.append(Stage(self._weights(layout, layers[1], (0.0, 0.0)), layers[1], in_flight, False))
        return found

    def _weights(
        self, layout: ProcessLayout, layers: int, ends: tuple[float, float], *, last: bool = False
    ) -> LocalWeights:
        """Count so many layers with an embedding and a head, or without."""
        key = (layout.tp, layout.ep * layout.etp, layers, ends, last)
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = self._count(layout, layers, ends, last=last)
        return replace(counted, layout=layout)

    def _count(self, layout: ProcessLayout, layers: int, ends: tuple[float, float], *, last: bool) -> LocalWeights:
        shape, count = self.shape, self.trained
        experts = 0
        if shape.experts:
            experts = min(layers, shape.expert_layers) if last else max(0, layers - shape.dense_layers)
        plain = count.layer(with_experts=False)
        mixed = count.layer(with_experts=True) if experts else (0.0, 0.0)
        routed = count.experts() if experts else (0.0, 0.0)
        embedding, head = ends
        end = count.end((embedding + head) * shape.embedding + head * shape.hidden)
        experts_cut = layout.ep * layout.etp
        dealt = [experts * each / experts_cut for each in routed]
        trained, frozen = (
            ((layers - experts) * plain[index] + experts * mixed[index] + end[index]) / layout.tp + dealt[index]
            for index in (0, 1)
        )
        return LocalWeights(
            layout=layout,
            trained=trained,
            frozen=frozen,
            trained_experts=dealt[0],
            frozen_experts=dealt[1],
            block=sum(mixed) / layout.tp + sum(routed) / experts_cut if experts else sum(plain) / layout.tp,
            ends=sum(end) / layout.tp,
            compute_bytes=self.workload.compute_bytes,
            frozen_bytes=self.workload.frozen_bytes,
            slot_bytes=self.slot_bytes,
        )


def layer_sizes(shape: ModelShape, layout: ProcessLayout, compute_bytes: float, *, with_experts: bool) -> LayerSizes:
    """Return the widths of a layer, as a token meets them."""
    width = shape.experts_per_token * shape.expert_width + shape.shared_width if with_experts else shape.width
    return LayerSizes(
        layout, shape.hidden, shape.heads, shape.queries, shape.keys, float(width), shape.gated, shape.normed_heads,
        compute_bytes,
    )  # fmt: skip


def transformers_layer(layer: LayerSizes) -> float:
    """Count what a layer of transformers keeps for its backward pass, in bytes a token.

    Norms compute in fp32 whatever the arithmetic does, and autocast keeps what it has converted for every matrix.
    """
    tp, size = layer.layout.tp, layer.compute_bytes
    norms = 16 * layer.hidden + 8
    inputs = (5 * size if size < 4 else 2 * size) * layer.hidden
    attention = size * (2 * layer.queries + 2 * layer.keys) + 4 * layer.heads
    if layer.normed_heads:
        attention += (4 + size) * (layer.queries + layer.keys)
    mlp = size * layer.width * (4 if layer.gated else 2)
    return norms + inputs + (attention + mlp) / tp


class Activations:
    """Bytes a token that a model's layers keep under one layout."""

    def __init__(self, backend: PlannedBackend, run: Run, shape: ModelShape, workload: Workload) -> None:
        layout = backend.layout(run)
        size, hidden = workload.compute_bytes, shape.hidden
        self.hidden, self.vocabulary = hidden, shape.vocabulary
        layer = layer_sizes(shape, layout, size, with_experts=bool(shape.experts))
        told = backend.activations(run, layer)
        self.own = told is not None
        self.layer = told if told is not None else transformers_layer(layer)
        if shape.experts:
            # What is sent to the experts and comes back, once for every expert that a token chose.
            self.layer += 2 * size * shape.experts_per_token * hidden / layout.tp
        # Where a layer is recomputed, its input stays: fp32 between the layers of transformers.
        kept = (size if self.own else 4.0) * hidden
        self.kept = kept / (layout.tp if self.own and layout.sequence_parallel else 1)

    def bytes(self, stage: Stage, tokens: float, micro_batches: int, *, recompute: bool) -> float:
        """Return the bytes of a stage's activations for micro-batches of so many tokens."""
        in_flight = min(stage.in_flight, micro_batches)
        if not recompute:
            return stage.layers * in_flight * self.layer * tokens
        return (stage.layers * in_flight * self.kept + self.layer) * tokens

    def logits(self, stage: Stage, tokens: float) -> float:
        """Return the bytes that the loss takes, on the stage that has the head."""
        if not stage.has_head:
            return 0.0
        size = stage.weights.compute_bytes * self.hidden * tokens
        return min(2 * 4 * tokens * self.vocabulary / stage.weights.layout.tp, _LOGITS) + 2 * size
