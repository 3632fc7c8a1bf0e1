"""One optimizer step over one global batch through Megatron's pipeline schedules, and the same without gradient.

Megatron would divide losses by numbers of micro-batches or tokens, and gradients by numbers of processes. All of that
is switched off: a micro-batch's loss is divided by the weight of the global batch, and the rest are sums.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from swift.contracts import ForwardResult, Objective, Run, StepResult
from swift.data.batch import Batch, MicroBatch
from swift.toolkit import GlobalSums, NonFiniteStep, before_update, heartbeat, seed_dropout
from swift_backend_megatron import megatron_runtime
from swift_backend_megatron.adapters import adapters_off
from swift_backend_megatron.head import view_of
from swift_backend_megatron.images import embedded
from swift_backend_megatron.sequences import MicroBatchSlice
from swift_backend_megatron.shard import MegatronState
from swift_backend_megatron.tensor_map import MegatronModel
from swift_backend_megatron.topology import last_stage_rank


def train_step(run: Run, state: MegatronState, batch: Batch, objective: Objective) -> StepResult:
    """Run forward and backward of all micro-batches, clip the summed gradient, and update."""
    with megatron_runtime.active():
        for chunk in state.wrapped:
            chunk.zero_grad_buffer()
            chunk.train()
        state.optimizer.zero_grad()
        if state.built.sees:
            # Gradients of the encoder are added up across all processes, also of those without an image.
            batch = batch.with_stand_ins()
        with state.routers.step(batch):
            totals = _pass(run, state, batch, objective, forward_only=False)
        learning_rate = run.schedule(state.step)
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate * group["lr_scale"]
        overflow, grad_norm = _ready(state, run.config.optim.max_grad_norm)
        finite = math.isfinite(totals.loss) and math.isfinite(grad_norm)
        scaled = state.config.fp16
        if run.config.train.detect_nan and not finite and not (scaled and math.isfinite(totals.loss)):
            raise NonFiniteStep(totals.loss / batch.weight, grad_norm, totals.nonfinite_samples)
        skipped = overflow or not finite
        if not skipped:
            before_update()
            state.optimizer.step_with_ready_grads()
        totals.metrics.update(state.routers.finish(batch, skipped=skipped))
    state.step += 1
    return StepResult(
        loss=totals.loss / batch.weight,
        grad_norm=grad_norm,
        learning_rate=learning_rate,
        metrics={name: total / weight if weight else 0.0 for name, (total, weight) in totals.metrics.items()},
        skipped=skipped,
    )


@torch.no_grad()
def forward(run: Run, state: MegatronState, batch: Batch, objective: Objective) -> ForwardResult:
    """Compute views and sums without gradients."""
    with megatron_runtime.active():
        for chunk in state.wrapped:
            chunk.train(batch.dropout)
        viewed = adapters_off(state.built.chunks) if objective.adapters_off else contextlib.nullcontext()
        with viewed, same_dropout_again():
            totals = _pass(run, state, batch, objective, forward_only=True)
    return ForwardResult(
        loss=totals.loss / (batch.weight or 1.0),
        weight=batch.weight,
        metrics=totals.metrics,
        segments=totals.segments if batch.rows else None,
        tokens=totals.tokens if batch.rows or totals.tokens is None else [],
    )


@dataclass
class StepTotals:
    """Global sums, and results of this slice, as the last stage sends them to the other stages of its pipeline."""

    loss: float
    metrics: dict[str, tuple[float, float]]
    segments: torch.Tensor | None = None
    tokens: Sequence[Mapping[str, np.ndarray]] | None = None
    nonfinite_samples: list[int] = field(default_factory=list)


def _pass(run: Run, state: MegatronState, batch: Batch, objective: Objective, *, forward_only: bool) -> StepTotals:
    """Send all micro-batches through the pipeline."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    shards = _shards(run, state, batch)
    sums = GlobalSums(state.slicer.device)

    def losses(shard: MicroBatchSlice, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        found = objective.loss(view_of(state.built, shard, hidden, objective.needs), shard.batch)
        if shard.counts:
            sums.add(found, shard.batch)
        share = found.loss / (batch.weight or 1.0) if shard.counts else found.loss * 0.0
        return share, torch.zeros((), dtype=torch.int, device=hidden.device), {}

    def step(shards: Iterator[MicroBatchSlice], chunk: Any) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
        shard = next(shards)
        heartbeat()
        if batch.dropout or not forward_only:
            seed_dropout(shard.batch.seed, state.slicer.device)
        with state.routers.forward(shard):
            return hidden_of(state.built, chunk, shard), partial(losses, shard)

    iterators = [iter(shards) for _ in state.wrapped]
    get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iterators if len(iterators) > 1 else iterators[0],
        model=state.wrapped if len(state.wrapped) > 1 else state.wrapped[0],
        num_microbatches=len(shards),
        seq_length=shards[0].input_ids.shape[1] * state.slicer.cp,
        micro_batch_size=shards[0].input_ids.shape[0],
        forward_only=forward_only,
    )
    return _broadcast_totals(sums)


def hidden_of(built: MegatronModel, chunk: Any, shard: MicroBatchSlice) -> torch.Tensor:
    """Return what a chunk makes of a micro-batch: hidden states for the next stage, or for the head."""
    given: dict[str, Any] = {}
    if built.towered:
        given = embedded(getattr(chunk, "module", chunk), shard, built.config)
    hidden: torch.Tensor = chunk(shard.input_ids, shard.position_ids, None, packed_seq_params=shard.packed, **given)
    return hidden


def _shards(run: Run, state: MegatronState, batch: Batch) -> list[MicroBatchSlice]:
    """Return as many on every process; interleaved stages take turns with as many as there are stages."""
    parallel = run.config.parallel
    count = batch.most_micro_batches(run.topology.data_size)
    unit = parallel.pp if parallel.vpp > 1 else 1
    count = -(-count // unit) * unit
    micro_batches = list(batch.micro_batches())
    taken = [(each, True) for each in micro_batches]
    taken += [(batch.dummy(), False) for _ in range(count - len(micro_batches))]
    shape = (0, 0) if state.config.variable_seq_lengths else _common_shape([each for each, _ in taken], state)
    return [state.slicer.slice(each, counts, shape) for each, counts in taken]


def _common_shape(micro_batches: list[MicroBatch], state: MegatronState) -> tuple[int, int]:
    """Return rows and tokens of the largest micro-batch of all processes: gathering tokens wants equal shapes."""
    shapes = [(*each.input_ids.shape, each.segments) for each in micro_batches]
    largest = torch.tensor(shapes, device=state.slicer.device).amax(0)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    rows, width, samples = (int(each) for each in largest)
    # Under context parallel segments are padded one by one.
    return rows, width + (samples * 2 * state.slicer.cp if state.slicer.cp > 1 else 0)


@contextlib.contextmanager
def same_dropout_again() -> Iterator[None]:
    """Let what follows draw the same random numbers once more, of the generators that tensor parallel regions have."""
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    tracker = get_cuda_rng_tracker()
    states = tracker.get_states()
    try:
        yield
    finally:
        tracker.set_states(states)


def _broadcast_totals(sums: GlobalSums) -> StepTotals:
    """Reduce the sums over data parallel processes on the last stage, and send them to the other stages."""
    from megatron.core import parallel_state

    totals: list[StepTotals | None] = [None]
    if parallel_state.is_pipeline_last_stage(ignore_virtual=True):
        group = parallel_state.get_data_parallel_group()
        loss, metrics = sums.reduce(lambda table: dist.all_reduce(table, group=group))
        nonfinite_samples = [] if math.isfinite(loss) else sums.nonfinite_samples()
        totals[0] = StepTotals(loss, metrics, sums.segments, sums.tokens, nonfinite_samples)
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        dist.broadcast_object_list(
            totals, src=last_stage_rank(), group=parallel_state.get_pipeline_model_parallel_group()
        )
    assert totals[0] is not None
    return totals[0]


def _ready(state: MegatronState, limit: float) -> tuple[bool, float]:
    """Make gradients ready for the update; return whether they overflowed, and their norm before clipping."""
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

    optimizer = state.optimizer
    overflow = bool(optimizer.prepare_grads())
    if overflow:
        return True, math.inf
    norm = float(optimizer.get_grad_norm())
    if limit and math.isfinite(norm):
        for each in state.masters.optimizers:
            parameters = each.get_parameters()
            if parameters:
                clip_grad_by_total_norm_fp32(parameters, limit, norm)
    return False, norm
