"""One optimizer step over one global batch, and the same without gradient."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from swift.backends.torch.shard import take_turn
from swift.models.step_copies import weights_cast_once
from swift.optim.clipping import clip
from swift.train.steps import accumulate, gradient_view, score, update

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from swift.backends.torch.shard import TorchState
    from swift.contracts import ForwardResult, Objective, Run, StepResult
    from swift.data.batch import Batch
    from swift.train.steps import AllReduce


def train_step(run: Run, state: TorchState, batch: Batch, objective: Objective) -> StepResult:
    """Accumulate micro-batches, add gradients up across processes after the last one, clip, update."""
    take_turn(run, state, state.step)
    with gradient_view(state.optimizer):
        return _train_step(run, state, batch, objective)


def _train_step(run: Run, state: TorchState, batch: Batch, objective: Objective) -> StepResult:
    replica = state.replica

    def around(last: bool) -> AbstractContextManager[Any]:
        if isinstance(replica, DistributedDataParallel) and not last:
            return replica.no_sync()
        return contextlib.nullcontext()

    replica.train()
    if isinstance(replica, DistributedDataParallel) and state.sees:
        # DDP waits for a gradient of every trained weight, on every process.
        batch = batch.with_stand_ins()
    with weights_cast_once(state.model, state.arithmetic.compute):
        sums = accumulate(replica, batch, objective, state.arithmetic, around=around)
    if state.sees:
        for parameter in state.trained():
            # A step without images: on several processes stand-ins make the encoder's gradient zero, not absent.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    state.arithmetic.scaler.unscale_(state.optimizer)
    limit = run.config.optim.max_grad_norm or math.inf
    grad_norm = clip(state.trained(), limit, state.optimizer)
    return update(
        run,
        state,
        batch,
        sums,
        optimizer=state.optimizer,
        arithmetic=state.arithmetic,
        grad_norm=grad_norm,
        all_reduce=_all_reduce(),
    )


def forward(run: Run, state: TorchState, batch: Batch, objective: Objective) -> ForwardResult:
    """Compute views and sums only."""
    return score(state.view, state.model, batch, objective, state.arithmetic, all_reduce=_all_reduce())


def _all_reduce() -> AllReduce | None:
    return dist.all_reduce if dist.is_initialized() else None
