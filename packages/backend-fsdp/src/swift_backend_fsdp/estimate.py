"""Memory and traffic of a process, counted before anything is built. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swift.contracts import GROWING, HOST, LEAVING, PASSING, LocalWeights, RequestedRun, Traffic
from swift_backend_fsdp.config import FsdpConfig


def variants() -> Mapping[str, Sequence[str]]:
    """Return when gradients are cut: once a step, or after each micro-batch."""
    return {"fsdp": (), "fsdp early": ("--backend.reduce", "micro_batch")}


def estimate_memory(run: RequestedRun, weights: LocalWeights) -> Mapping[str, float]:
    """Shards of all state; blocks are gathered in the precision of the arithmetic as they are needed."""
    options = run.options(FsdpConfig)
    shard_trained, shard_frozen = _shards(weights)
    part = shard_frozen / weights.frozen if weights.frozen else 0.0
    state = {
        "weights": 4 * shard_trained + weights.frozen_bytes * shard_frozen + (1 - part) * weights.scale_bytes,
        GROWING + "gradients": 4 * shard_trained,
        "optimizer": weights.slot_bytes * shard_trained,
    }
    if options.offload:
        state = {HOST + name.removeprefix(GROWING): size for name, size in state.items()}
    trained = weights.trained / weights.all if weights.all else 0.0
    reduced = 4.0 if options.reduce_dtype == "float32" else weights.compute_bytes
    stays_whole = options.reduce == "step" and run.config.train.accumulation > 1
    whole = reduced * weights.trained if stays_whole else 0.0
    return {
        **state,
        **_gathered(options, weights),
        "whole gradients of micro-batches": whole,
        LEAVING + "gradients on their way": (weights.compute_bytes + reduced) * weights.block * trained,
    }


@dataclass(frozen=True)
class _Group:
    """Weights that are sharded over the same processes."""

    name: str
    trained: float
    frozen: float
    over: int
    """Processes that share them."""
    stride: int
    """How far apart two neighbours are, as ranks."""


def _groups(weights: LocalWeights) -> list[_Group]:
    """Return all weights, or under expert parallel those of experts apart: fewer processes have the same ones."""
    layout = weights.layout
    over = layout.shard * layout.sequence
    if layout.ep == 1:
        return [_Group("", weights.trained, weights.frozen, over, layout.tp)]
    trained, frozen = weights.trained_experts, weights.frozen_experts
    return [
        _Group("", weights.trained - trained, weights.frozen - frozen, over, 1),
        _Group(" of experts", trained, frozen, over // layout.ep, layout.ep),
    ]


def _shards(weights: LocalWeights) -> tuple[float, float]:
    """Return what one process keeps of the trained weights, and of the frozen ones."""
    groups = _groups(weights)
    return sum(each.trained / each.over for each in groups), sum(each.frozen / each.over for each in groups)


def _gathered(options: FsdpConfig, weights: LocalWeights) -> dict[str, float]:
    """Return the bytes of what is whole at once: the ends for the whole pass, the block in use and those fetched ahead.

    What is fetched arrives in one buffer, from which the block's own tensors are copied. At the loss no block is whole.
    A process by itself fetches nothing ahead, and copies a block's shards when it gets there.
    """
    if not options.reshard_after_forward:
        layers = weights.all - weights.ends
        return {"gathered weights": weights.compute_bytes * weights.ends + weights.gathered_bytes * layers}
    over = weights.layout.shard * weights.layout.sequence
    blocks = min((2 + options.prefetch if over > 1 else 1) * weights.block, weights.all)
    return {
        "gathered weights": weights.compute_bytes * weights.ends,
        PASSING + "gathered blocks": weights.gathered_bytes * blocks,
    }


def estimate_traffic(run: RequestedRun, weights: LocalWeights, micro_batches: int) -> Sequence[Traffic]:
    """Weights are gathered for each forward and backward pass, gradients cut once a step or after each."""
    options, layout = run.options(FsdpConfig), weights.layout
    over = layout.shard * layout.sequence
    blocks = max(1.0, weights.all / max(weights.block, 1.0))
    passes = 2 if options.reshard_after_forward else 1
    reduced = 4.0 if options.reduce_dtype == "float32" else weights.compute_bytes
    times = micro_batches if options.reduce == "micro_batch" else 1
    traffic = []
    for group in _groups(weights):
        # The ends stay whole from a forward pass to its backward pass.
        ends = 0.0 if group.name else weights.ends
        layers = passes * (group.trained + group.frozen - ends)
        gathered = weights.gathered_bytes * layers + weights.compute_bytes * ends
        traffic += [
            Traffic(
                f"weights{group.name}", "all_gather", micro_batches * gathered, group.over,
                group.stride, calls=micro_batches * passes * blocks, hidden=0.9,
            ),
            Traffic(
                f"gradients{group.name}", "reduce_scatter", times * reduced * group.trained, group.over, group.stride,
                calls=times * blocks, hidden=0.9 * times / micro_batches,
            ),
        ]  # fmt: skip
    trained, frozen = _shards(weights)
    if options.offload:
        moved = micro_batches * passes * 4 * (trained + frozen) + 4 * trained
        traffic.append(Traffic("weights and gradients to the host", "host", moved, 1))
        traffic.append(Traffic("update on the host", "host", (16 + weights.slot_bytes) * trained, 1))
    if layout.replicate > 1:
        traffic.append(
            Traffic(
                "gradients between replicas", "all_reduce", reduced * trained, layout.replicate, layout.tp * over,
                calls=blocks, hidden=0.9 / micro_batches,
            )
        )  # fmt: skip
    return traffic
