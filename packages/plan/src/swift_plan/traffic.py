"""Messages that come of cut layers, sequences and experts: counted from the layout, by one process a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from swift.contracts import ProcessLayout, Traffic
from swift_plan.shape import ModelShape
from swift_plan.workload import Workload

_GATHERED: tuple[tuple[Literal["all_gather", "reduce_scatter"], int], ...] = (("all_gather", 0), ("reduce_scatter", 1))
"""What becomes of keys and values in a pass, and how often; 0 is once for each forward pass."""
_SEQUENCE_PARALLEL: tuple[Literal["all_gather", "reduce_scatter"], ...] = ("all_gather", "reduce_scatter")


def step_traffic(shape: ModelShape, layout: ProcessLayout) -> Iterator[Traffic]:
    """Yield what the ends of a pipeline exchange once a step: gradients of an embedding that is the head too."""
    if layout.pp > 1 and shape.unembeds and shape.tied:
        apart = layout.world // layout.pp * (layout.pp - 1)
        yield Traffic("gradients of the embedding", "all_reduce", 4 * shape.embedding / layout.tp, 2, apart)


def model_traffic(
    shape: ModelShape, layout: ProcessLayout, workload: Workload, tokens: float, layers: int, *, recompute: bool
) -> Iterator[Traffic]:
    """Yield the messages of one micro-batch of so many tokens through so many layers, forward and backward."""
    hidden = tokens * workload.compute_bytes * shape.hidden
    passes = 3 if recompute else 2
    if layout.tp > 1:
        yield from _of_cut_layers(shape, layout, workload, hidden, layers, passes)
    if layout.sequence > 1:
        yield from _of_cut_sequences(shape, layout, workload, tokens, layers, passes)
    if layout.ep * layout.etp > 1:
        yield from _of_experts(shape, layout, hidden, min(layers, shape.expert_layers), passes)
    if layout.pp > 1:
        cut = layout.tp if layout.sequence_parallel else 1
        apart = layout.world // layout.pp
        yield Traffic("pipeline", "send", 2 * layout.vpp * hidden / cut, layout.pp, apart, calls=2 * layout.vpp)


def _of_cut_layers(
    shape: ModelShape, layout: ProcessLayout, workload: Workload, hidden: float, layers: int, passes: int
) -> Iterator[Traffic]:
    """Yield the messages of tensor parallelism."""
    # Embedding and head exchange as much as half a layer each; a stage within the pipeline has neither.
    times = passes * 2 * layers + (2 if layout.pp == 1 else 1)
    if not workload.own_layers:
        # Each of the matrices with one input has its gradient added up by itself; embedding and head are whole.
        times = ((passes - 1) * 2 + 3 + (2 if shape.gated else 1)) * layers
    if not layout.sequence_parallel:
        yield Traffic("tensor parallel", "all_reduce", times * hidden, layout.tp, calls=times)
        return
    # Tokens go to their experts from where they are, so that those layers gather for attention alone.
    times -= passes * min(layers, shape.expert_layers)
    for operation in _SEQUENCE_PARALLEL:
        yield Traffic(f"sequence parallel {operation}", operation, times * hidden, layout.tp, calls=times)


def _of_cut_sequences(
    shape: ModelShape, layout: ProcessLayout, workload: Workload, tokens: float, layers: int, passes: int
) -> Iterator[Traffic]:
    """Yield the messages of processes that have a part of each sequence."""
    size = workload.compute_bytes
    if layout.ulysses > 1:
        around = tokens * size * (2 * shape.queries + 2 * shape.keys) / layout.tp
        yield Traffic(
            "ulysses", "all_to_all", passes * layers * around, layout.ulysses, layout.tp, calls=passes * 4 * layers
        )
    if layout.cp == 1:
        return
    keys, stride = tokens * size * 2 * shape.keys / layout.tp, layout.tp * layout.ulysses
    if workload.on_cpu or not workload.own_layers:
        # Everybody's keys and values are gathered before attention, and their gradients added up.
        for operation, often in _GATHERED:
            times = (often or passes - 1) * layers
            whole = times * keys * layout.cp
            yield Traffic(f"keys and values, {operation}", operation, whole, layout.cp, stride, calls=2 * times)
        return
    # Keys and values go around the ring while attention is computed; on the way back their gradients go with them.
    times = (passes - 1 + 2) * layers * (layout.cp - 1)
    yield Traffic("context parallel", "send", times * keys, layout.cp, stride, calls=times, hidden=0.7)


def _of_experts(shape: ModelShape, layout: ProcessLayout, hidden: float, layers: int, passes: int) -> Iterator[Traffic]:
    """Yield the messages of so many layers with experts."""
    dealt = hidden * shape.experts_per_token / layout.tp
    times = passes * layers
    if layout.ep > 1:
        yield Traffic("experts", "all_to_all", 2 * times * dealt, layout.ep, layout.etp, calls=2 * times)
    if layout.etp > 1:
        # Every process of the group computes a part of each expert, and needs all of the tokens for it.
        whole = times * dealt * layout.etp
        yield Traffic("tokens for parts of experts", "all_gather", whole, layout.etp, calls=times)
        yield Traffic("results of parts", "reduce_scatter", whole, layout.etp, calls=times)
