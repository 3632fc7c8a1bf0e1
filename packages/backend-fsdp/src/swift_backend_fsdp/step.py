"""One optimizer step over one global batch, and the same without gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from swift.toolkit import accumulate, gradient_view, score, update
from swift_backend_fsdp import gradients
from swift_backend_fsdp.config import FsdpConfig
from swift_backend_fsdp.shard import take_turn

if TYPE_CHECKING:
    from swift.contracts import ForwardResult, Objective, Run, StepResult
    from swift.data.batch import Batch
    from swift_backend_fsdp.shard import FsdpState


def train_step(run: Run, state: FsdpState, batch: Batch, objective: Objective) -> StepResult:
    """Accumulate micro-batches, add gradients up across processes after the last one or each of them, clip, update."""
    take_turn(run, state, state.step)
    with gradient_view(state.optimizer):
        return _train_step(run, state, batch, objective)


def _train_step(run: Run, state: FsdpState, batch: Batch, objective: Objective) -> StepResult:
    root, scaler = state.root, state.arithmetic.scaler
    each = run.options(FsdpConfig).reduce == "micro_batch"

    @contextlib.contextmanager
    def around(last: bool) -> Iterator[None]:
        root.set_requires_gradient_sync(last or each)  # type: ignore[operator]  # fully_shard made it an FSDPModule
        yield

    root.train()
    if state.sees:
        # Gradients of the encoder are added up across all processes, also of those without an image.
        batch = batch.with_stand_ins()
    passes = batch.most_micro_batches(run.topology.data_size)
    sums = accumulate(root, batch, objective, state.arithmetic, around=around, passes=passes)
    gradients.set_gradients(state)
    if scaler.is_enabled():
        scaler.unscale_(state.optimizer)
        _share_overflow(state)
    grad_norm = gradients.norm(state)
    if run.config.optim.max_grad_norm:
        gradients.clip(state, grad_norm, run.config.optim.max_grad_norm)
    try:
        return update(
            run,
            state,
            batch,
            sums,
            optimizer=state.optimizer,
            arithmetic=state.arithmetic,
            grad_norm=grad_norm,
            all_reduce=lambda table: _add_up(state, table),
        )
    finally:
        gradients.drop(state)


def forward(run: Run, state: FsdpState, batch: Batch, objective: Objective) -> ForwardResult:
    """Compute views and sums only."""
    try:
        return score(
            state.root,
            state.model,
            batch,
            objective,
            state.arithmetic,
            all_reduce=lambda table: _add_up(state, table),
            passes=batch.most_micro_batches(run.topology.data_size),
        )
    finally:
        state.root.reshard_all()


def _add_up(state: FsdpState, table: torch.Tensor) -> None:
    dist.all_reduce(table, group=state.meshes.slices)


def _share_overflow(state: FsdpState) -> None:
    """Tell all processes about an overflow in one process's shard."""
    found = state.arithmetic.scaler._per_optimizer_states[id(state.optimizer)]["found_inf_per_device"]
    for flag in found.values():
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
