"""Peak memory of the process that has the most, by term: weights and their state, activations, the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

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
    """What one stage of a pipeline holds."""

    weights: LocalWeights
    layers: int
    in_flight: float
    """Micro-batches whose activations it keeps at once, in units of all of its layers."""
    has_head: bool


def stages(
    shape: ModelShape, layout: ProcessLayout, trained: TrainedCount, workload: Workload, slots: float
) -> list[Stage]:
    """Return the first and the last stage of the pipeline, which between them have the most of everything."""
    per_stage = ceil(shape.layers / layout.pp)
    experts_first = max(0, per_stage - shape.dense_layers) if shape.experts else 0
    experts_last = min(per_stage, shape.expert_layers)
    ahead = (layout.pp - 1) / layout.vpp
    first = (per_stage, experts_first, 1.0, 1.0 if layout.pp == 1 and not shape.tied else 0.0)
    last = (per_stage, experts_last, 0.0, 1.0)
    found = [
        Stage(
            _local(shape, layout, trained, workload, slots, first),
            per_stage,
            in_flight=float(layout.pp) if layout.vpp == 1 else layout.pp + ahead,
            has_head=layout.pp == 1,
        )
    ]
    if layout.pp > 1:
        found.append(Stage(_local(shape, layout, trained, workload, slots, last), per_stage, 1.0, has_head=True))
    return found


def _local(
    shape: ModelShape,
    layout: ProcessLayout,
    count: TrainedCount,
    workload: Workload,
    slots: float,
    held: tuple[int, int, float, float],
) -> LocalWeights:
    """Count the weights of a stage with so many layers, of which so many have experts, and with its ends."""
    layers, with_experts, embeddings, heads = held
    plain, mixed, routed = (
        count.layer(with_experts=False),
        count.layer(with_experts=True) if with_experts else (0.0, 0.0),
        count.experts() if with_experts else (0.0, 0.0),
    )
    ends = count.end((embeddings + heads) * shape.embedding + heads * shape.hidden)
    dense, cut = layers - with_experts, layout.tp
    experts_cut = layout.ep * layout.etp
    experts = [with_experts * each / experts_cut for each in routed]
    trained, frozen = (
        (dense * plain[index] + with_experts * mixed[index] + ends[index]) / cut + experts[index] for index in (0, 1)
    )
    largest = sum(mixed) / cut + sum(routed) / experts_cut if with_experts else sum(plain) / cut
    return LocalWeights(
        layout=layout,
        trained=trained,
        frozen=frozen,
        trained_experts=experts[0],
        frozen_experts=experts[1],
        block=largest,
        ends=sum(ends) / cut,
        compute_bytes=workload.compute_bytes,
        frozen_bytes=workload.frozen_bytes,
        slot_bytes=slots,
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

    def bytes(self, stage: Stage, tokens: float, *, recompute: bool) -> float:
        """Return the bytes of a stage's activations for micro-batches of so many tokens."""
        if not recompute:
            return stage.layers * stage.in_flight * self.layer * tokens
        return (stage.layers * stage.in_flight * self.kept + self.layer) * tokens


def peak(
    stage: Stage,
    states: Mapping[str, float],
    activations: Activations,
    shape: ModelShape,
    tokens: float,
    *,
    recompute: bool,
) -> dict[str, float]:
    """Return the bytes of one stage at the peak of a step, by term."""
    terms = dict(states)
    terms["activations"] = activations.bytes(stage, tokens, recompute=recompute)
    if stage.has_head:
        layout = stage.weights.layout
        logits = 2 * tokens * shape.vocabulary / layout.tp * 4
        terms["logits of a chunk"] = min(logits, _LOGITS) + 2 * stage.weights.compute_bytes * shape.hidden * tokens
    return terms
