"""Peak memory of the process that has the most, by term, at the instant of a step at which there is most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any, NamedTuple, Protocol

from swift.contracts import (
    AFTERWARDS,
    GROWING,
    HOST,
    LEAVING,
    PASSING,
    Basis,
    LayerSizes,
    LocalWeights,
    ProcessLayout,
    RequestedRun,
)
from swift.planning import PlannedBackend
from swift_plan.shape import ModelShape
from swift_plan.workload import TrainedCount, Workload

_KEPT_LOGITS = 64 * 2**20
"""Logits of all tokens up to this size are kept for the backward pass; larger ones are made chunk by chunk."""
_CHUNK = {True: 64 * 2**20, False: 256 * 2**20}
"""Bytes of a chunk of logits in fp32, on the CPU and on other devices."""


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

    def __init__(self, backend: PlannedBackend, shape: ModelShape, workload: Workload) -> None:
        self.shape, self.workload, self.trained = shape, workload, TrainedCount(backend, shape, workload)
        self._slot_bytes = backend.slot_bytes((shape.hidden, shape.hidden))
        self._cuts_experts, self._cuts_vocabulary = backend.cuts_experts, backend.cuts_vocabulary
        self._counted: dict[Any, LocalWeights] = {}

    def under(self, layout: ProcessLayout, sizes: Sequence[int] = ()) -> list[Stage]:
        """Return the stages that may have the most: the first, the last, and the second where that has more layers."""
        pp, vpp, shape = layout.pp, layout.vpp, self.shape
        layers = [sum(sizes[stage::pp]) for stage in range(pp)] if sizes else [ceil(shape.layers / pp)] * pp
        if pp == 1:
            ends = (1.0, float(shape.own_head))
            return [Stage(self._weights(layout, layers[0], ends), layers[0], 1.0, has_head=True)]
        more = (pp - 1) * (vpp > 1) / vpp  # micro-batches of other chunks
        first = self._weights(layout, layers[0], (1.0, 0.0))
        last = self._weights(layout, layers[-1], (0.0, float(shape.unembeds)), last=True)
        found = [Stage(first, layers[0], pp + more, False), Stage(last, layers[-1], 1.0 + more, True)]
        if layers[1] > layers[0] and pp > 2:
            found.append(Stage(self._weights(layout, layers[1], (0.0, 0.0)), layers[1], pp - 1 + more, False))
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
        whole = count.end((embedding + head) * shape.embedding + (embedding * shape.positions + head) * shape.hidden)
        end = [each / (layout.tp if self._cuts_vocabulary else 1) for each in whole]
        experts_cut = layout.ep * (layout.tp if self._cuts_experts else layout.etp)
        dealt = [experts * each / experts_cut for each in routed]
        trained, frozen = (
            ((layers - experts) * plain[index] + experts * mixed[index]) / layout.tp + end[index] + dealt[index]
            for index in (0, 1)
        )
        base = frozen if self.workload.adapted else trained
        times = ((layers - experts) / layout.tp, experts / layout.tp, experts / experts_cut)
        block = sum(mixed) / layout.tp + sum(routed) / experts_cut if experts else sum(plain) / layout.tp
        return LocalWeights(
            layout=layout,
            trained=trained,
            frozen=frozen,
            trained_experts=dealt[0],
            frozen_experts=dealt[1],
            block=block,
            ends=sum(end),
            compute_bytes=self.workload.compute_bytes,
            slot_bytes=self._slot_bytes,
            on_cpu=self.workload.on_cpu,
            **self._stored(base, block, times),
        )

    def _stored(self, base: float, block: float, times: tuple[float, float, float]) -> dict[str, float]:
        """Return the bytes of a model's own values, with so many layers: plain, mixed, and experts of mixed."""
        quantized, compute = self.trained.quantized, self.workload.compute_bytes
        if quantized is None or not base:
            return {"frozen_bytes": compute, "gathered_bytes": compute}
        parts = (quantized.plain, quantized.mixed, quantized.experts)
        stored, scales, values = (
            sum(count * each for count, each in zip(times, found, strict=True))
            for found in zip(*((part.stored, part.scales, part.values) for part in parts), strict=True)
        )
        largest = parts[1:] if times[1] else parts[:1]
        packed = sum(part.stored - part.scales - compute * part.values for part in largest)
        return {
            "frozen_bytes": compute + (stored - compute * values) / base,
            "scale_bytes": scales,
            "gathered_bytes": compute + packed / block,
        }


def layer_sizes(shape: ModelShape, layout: ProcessLayout, workload: Workload, *, with_experts: bool) -> LayerSizes:
    """Return the widths of a layer, as a token meets them."""
    width = shape.experts_per_token * shape.expert_width + shape.shared_width if with_experts else shape.width
    return LayerSizes(
        layout, shape.hidden, shape.heads, shape.queries, shape.keys, float(width), shape.gated, shape.normed_heads,
        workload.compute_bytes, adapted=workload.adapted, drops=workload.drops, on_cpu=workload.on_cpu,
    )  # fmt: skip


def transformers_layer(layer: LayerSizes) -> float:
    """Count what a layer of transformers keeps for its backward pass, in bytes a token.

    Norms compute in fp32 whatever the arithmetic does, and autocast keeps what it has converted for every matrix.
    """
    tp, size = layer.layout.tp, layer.compute_bytes
    entering = float(not layer.drops)  # products keep what they multiply, except where only copies are multiplied
    cast = entering * (size < 4)  # a copy in 16 bits for each of the matrices that have one input
    normalised = 0.0 if layer.adapted else 1.0  # for the gradient of the norm's weights
    norms = (8 + 8 * normalised) * layer.hidden + 8
    inputs = size * (3 * cast + 2 * entering) * layer.hidden
    attention = size * (2 * layer.queries + 2 * layer.keys) + 4 * layer.heads
    if layer.adapted:  # an adapter casts what comes out of attention, which the kernel keeps itself
        attention += size * cast * layer.queries
    if layer.normed_heads:
        attention += (4 + size * normalised) * (layer.queries + layer.keys)
    mlp = size * layer.width * ((3 if layer.gated else 1) + entering)
    return norms + inputs + (attention + mlp) / tp


def hidden_bytes(layer: LayerSizes) -> float:
    """Return the bytes of a hidden value between layers of transformers.

    They are those of what the embedding stores: fp32 where it is trained, and the arithmetic's where it is frozen.
    """
    return layer.compute_bytes if layer.adapted else 4.0


def recomputing(layer: LayerSizes) -> float:
    """Count what a recomputed layer of transformers takes beside what one that is not keeps, in bytes a token.

    Adapters are fp32: in 16 bits the last of them has a copy of its input in fp32 when all the rest is there.
    """
    tp, size = layer.layout.tp, layer.compute_bytes
    if not layer.adapted or size == 4:
        return size * (layer.width / tp + 2 * layer.hidden)
    copies = 8 if layer.drops else 4
    return size * (layer.width / tp + 4 * layer.hidden) + copies * layer.width / tp


@dataclass(frozen=True)
class LayerMemory:
    """Memory of a layer for its backward pass, in bytes a token."""

    kept: float
    """From its forward pass to its backward pass."""
    transient: float
    """While its backward pass is computed, beside what was kept: gradients, and what is computed again."""
    fixed: float = 0.0
    """Bytes for a moment, however many tokens: gradients of single weights."""
    ends: float = 0.0
    """Of the model around its layers."""
    whole: float = 0.0
    """What a layer keeps that is not recomputed."""
    held: float = 0.0
    """Bytes from its forward pass to its backward pass, however many tokens: experts with their adapters added."""

    def with_fixed(self, size: float) -> LayerMemory:
        """Return that of a layer that takes so many bytes more for a moment."""
        return replace(self, fixed=self.fixed + size)

    def scaled(self, by: float, kept: float) -> LayerMemory:
        """Return that of a layer cut so that it has this part of the tensors, and `kept` of what it keeps."""
        return replace(
            self, kept=self.kept * kept, transient=self.transient * by, fixed=self.fixed * by, whole=self.whole * by,
            held=self.held * by,
        )  # fmt: skip


class TracedMemory(Protocol):
    """Memory that a layer and the loss were seen to take, where a process has all of them."""

    def layer(self, *, recompute: bool) -> LayerMemory:
        """Return it of a layer."""

    def loss(self, tokens: int, *, cut: int = 1) -> float:
        """Return it of the loss of so many tokens, where `cut` processes share the head."""


_KINDS = {GROWING: 1, PASSING: 2, AFTERWARDS: 3, LEAVING: 4}


@cache
def _kind_of(name: str) -> tuple[int, str]:
    """Return when a term is there, and its name without the word that says so."""
    begun = next((each for each in _KINDS if name.startswith(each)), "")
    return _KINDS.get(begun, 0), name.removeprefix(begun)


@dataclass(frozen=True)
class KeptState:
    """Terms of a backend's memory on one stage, in bytes by name, apart by when they are there."""

    always: Mapping[str, float]
    growing: Mapping[str, float]
    """Gradients that are made by the backward pass, and are no more after the update."""
    passing: Mapping[str, float]
    """What is there while a backward pass goes through layers."""
    afterwards: Mapping[str, float]
    """What is there when it has gone through all of them."""
    leaving: Mapping[str, float]
    """What is there when it has gone through one."""
    sizes: tuple[float, ...]
    """The bytes of the five, without what lies in the machine's memory."""
    host: float
    """The bytes that do."""

    @classmethod
    def of(cls, terms: Mapping[str, float]) -> KeptState:
        """Take the terms of `swift_estimate_memory` apart."""
        apart: list[dict[str, float]] = [{} for _ in range(5)]
        sizes, host = [0.0] * 5, 0.0
        for name, size in terms.items():
            kind, plain = _kind_of(name)
            apart[kind][plain] = size
            if plain.startswith(HOST):
                host += size
            else:
                sizes[kind] += size
        always, growing, passing, afterwards, leaving = apart
        return cls(always, growing, passing, afterwards, leaving, tuple(sizes), host)


LOSS, BACKWARD, UPDATE = "the loss, by chunks", "a layer's backward pass", "before the update"


class Instant(NamedTuple):
    """A moment of a step at which there may be more than at any other."""

    name: str
    activations: float
    moment: float
    """What is there for this moment only."""
    grown: float
    """The part of the gradients that is there, from 0 to 1."""
    passing: bool
    total: float
    leaving: bool = False

    def terms(self, state: KeptState) -> dict[str, float]:
        """Return the bytes by name."""
        growing = {name: self.grown * size for name, size in state.growing.items()}
        if self.name == UPDATE:
            return {**state.always, **growing, **state.afterwards}
        passing = {**(state.passing if self.passing else {}), **(state.leaving if self.leaving else {})}
        return {**state.always, **growing, **passing, "activations": self.activations, self.name: self.moment}


class Activations:
    """Bytes that a model's layers and its loss take under one layout."""

    def __init__(
        self, backend: PlannedBackend, run: RequestedRun, shape: ModelShape, workload: Workload,
        trace: TracedMemory | None = None,
    ) -> None:  # fmt: skip
        layout = backend.layout(run)
        self._workload, self._shape, self._size = workload, shape, workload.compute_bytes
        self._on_cpu, self._adapted = workload.on_cpu, workload.experts
        self._head_cut = layout.tp if backend.cuts_vocabulary else 1
        self._vocabulary = shape.vocabulary * shape.unembeds
        self._head_gradient = 0.0 if workload.adapted else 4.0 * shape.hidden * self._vocabulary / self._head_cut
        self.basis: Basis = "counted"
        counted = self._counted(backend, run, layout)
        self.layer = counted[0].kept
        self._loss: Callable[[float], float] = self._counted_loss
        if trace is not None and not self._own:
            # What a layout takes away is counted, from what was traced of the whole.
            whole = self._counted(backend, run, ProcessLayout())
            by = counted[0].kept / whole[0].kept
            plain, again = trace.layer(recompute=False), trace.layer(recompute=True)
            counted = (plain.scaled(by, by), again.scaled(by, counted[1].kept / whole[1].kept))
            self.layer = counted[0].kept
            if shape.unembeds:
                self._loss = lambda tokens: trace.loss(max(1, round(tokens)), cut=self._head_cut)
            self.basis = "traced"
        if workload.quantize != "none":  # experts of the layer that computes are dense
            dense = self._size * shape.expert_values
            counted = (counted[0].with_fixed(dense), counted[1].with_fixed(dense))
        self._layers = counted

    def _counted(
        self, backend: PlannedBackend, run: RequestedRun, layout: ProcessLayout
    ) -> tuple[LayerMemory, LayerMemory]:
        """Return what a layer takes that is computed once, and one that is recomputed."""
        shape, size = self._shape, self._size
        widths = layer_sizes(shape, layout, self._workload, with_experts=bool(shape.experts))
        estimated = backend.activations(run, widths)
        self._own = estimated is not None
        layer = estimated if estimated is not None else transformers_layer(widths)
        if self._workload.drops:
            # Kernels for the CPU keep a number in fp32 where others keep a byte.
            whole_inputs, cut_inputs = shape.inputs
            layer += (size + (4 if self._on_cpu else 1)) * (whole_inputs + cut_inputs / layout.tp)
        if shape.experts:
            # What comes back from the experts, once for every expert that a token chose, and what is sent to them, of
            # which those of transformers keep nothing where they are frozen.
            sent = 1 if self._workload.adapted and not self._own else 2
            layer += sent * size * shape.experts_per_token * shape.hidden / layout.tp
        # Where a layer is recomputed, its input stays.
        kept = (size if self._own else hidden_bytes(widths)) * shape.hidden
        kept /= layout.tp if self._own and layout.sequence_parallel else 1
        # Gradients of the MLP's inner values, and of what goes in and out.
        moment = size * (widths.width / layout.tp + 2 * shape.hidden)
        again = layer + (moment if self._own else recomputing(widths))
        ends = (8.0 if self._own else 2 * hidden_bytes(widths)) * shape.hidden
        # PEFT adds adapters to experts as whole tensors, and makes whole gradients of the sums.
        stacks = [] if self._own else [each.values for each in shape.stacked_experts() if each.name in self._adapted]
        sums, largest = (size * count / (layout.ep * layout.etp) for count in (sum(stacks), max(stacks, default=0)))
        return (
            LayerMemory(layer, moment, largest, ends, layer, sums),
            LayerMemory(kept, again, 2 * sums, ends, layer),
        )

    def highest(self, stage: Stage, tokens: float, micro_batches: int, state: KeptState, *, recompute: bool) -> Instant:
        """Return the instant at which a stage has the most, for micro-batches of so many tokens."""
        layer = self._layers[recompute]
        in_flight = min(stage.in_flight, micro_batches)
        always, growing, passing, afterwards, leaving = state.sizes
        # After the first micro-batch there are gradients all the time.
        before = 1.0 if micro_batches > 1 else 0.0
        held = stage.layers * in_flight * layer.held
        all_layers = (stage.layers * in_flight * layer.kept + layer.ends) * tokens + held
        moment = layer.transient * tokens + layer.fixed
        head = self._head_gradient if stage.has_head else 0.0
        of_head = max(before, min(1.0, head / growing)) if growing else 0.0
        first = always + of_head * growing + all_layers + moment + passing
        # The embedding's gradient is not there before the last layer has been left.
        remaining = max(0.0, (in_flight - 1) * stage.layers + 1)
        one_layer = (remaining * layer.kept + layer.ends) * tokens + remaining * layer.held
        last = always + growing + one_layer + moment + passing
        # When a layer has been gone through, what it kept is gone, and its gradients are there.
        less = layer.kept * tokens + layer.held
        left = always + of_head * growing + all_layers - less + passing + leaving
        end = always + growing + one_layer - less + passing + leaving
        update = always + growing + afterwards
        loss = self._loss(tokens) if stage.has_head else 0.0
        at_loss = always + before * growing + all_layers + loss if stage.has_head else 0.0
        # Searches ask this of every plan: nothing is made but the answer.
        most = max(first, last, left, end, update, at_loss)
        if first == most:
            return Instant(BACKWARD, all_layers, moment, of_head, True, first)
        if last == most:
            return Instant(BACKWARD, one_layer, moment, 1.0, True, last)
        if left == most:
            return Instant(BACKWARD, all_layers - less, 0.0, of_head, True, left, True)
        if end == most:
            return Instant(BACKWARD, one_layer - less, 0.0, 1.0, True, end, True)
        if update == most:
            return Instant(UPDATE, 0.0, 0.0, 1.0, False, update)
        return Instant(LOSS, all_layers, loss, before, False, at_loss)

    def _counted_loss(self, tokens: float) -> float:
        """Count what the loss takes: a chunk of logits in fp32, its gradient in the arithmetic's, and of the head."""
        logits = 4.0 * tokens * self._vocabulary / self._head_cut
        chunk = logits if logits <= _KEPT_LOGITS else min(logits, _CHUNK[self._on_cpu])
        narrow = self._size if self._size < 4 else 0.0
        head = self._head_gradient * (1 + narrow / 4)
        return chunk * (1 + narrow / 4) + head + 4.0 * tokens * self._shape.hidden
