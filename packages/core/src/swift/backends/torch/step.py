"""One optimizer step over one global batch, and the same without gradient."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from swift.models.tuners import adapters_off
from swift.optim.build import set_learning_rate
from swift.train.sums import GlobalSums, NonFiniteStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from swift.backends.torch.shard import TorchState
    from swift.contracts import ForwardResult, Objective, Run, StepResult
    from swift.data.batch import Batch


def train_step(run: Run, state: TorchState, batch: Batch, objective: Objective) -> StepResult:
    """Accumulate micro-batches, add gradients up across processes after the last one, clip, update."""
    assert run.schedule is not None
    optim = run.config.optim
    learning_rate = run.schedule(state.step)
    set_learning_rate(state.optimizer, learning_rate)
    state.replica.train()
    sums = GlobalSums(state.device)
    last = len(batch) - 1
    for index, micro_batch in enumerate(batch.micro_batches()):
        torch.manual_seed(micro_batch.seed)
        micro_batch = micro_batch.to(state.device)
        with contextlib.nullcontext() if index == last else _without_reduction(state):
            with state.autocast():
                view = state.replica(micro_batch, objective.needs)
                losses = objective.loss(view, micro_batch)
            torch.autograd.backward(state.scaler.scale(losses.loss / batch.weight))
        sums.add(losses, micro_batch)

    state.scaler.unscale_(state.optimizer)
    limit = optim.max_grad_norm or math.inf
    grad_norm = float(torch.nn.utils.clip_grad_norm_(state.trained(), limit))
    reduced = sums.reduce(_all_reduce())
    finite = math.isfinite(grad_norm) and math.isfinite(reduced[0])
    # Under fp16 an overflow is expected now and then: the scaler leaves the update out and lowers its scale.
    if run.config.train.detect_nan and not finite and not (state.scaler.is_enabled() and math.isfinite(reduced[0])):
        state.optimizer.zero_grad(set_to_none=True)
        raise NonFiniteStep(reduced[0] / batch.weight, grad_norm, sums.culprits())
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    return sums.step_result(batch, reduced, grad_norm=grad_norm, learning_rate=learning_rate, skipped=not finite)


@torch.no_grad()
def forward(run: Run, state: TorchState, batch: Batch, objective: Objective) -> ForwardResult:
    """Views and sums only; dropout is off."""
    state.view.eval()
    sums = GlobalSums(state.device)
    with adapters_off(state.model) if objective.adapters_off else contextlib.nullcontext():
        for micro_batch in batch.micro_batches():
            micro_batch = micro_batch.to(state.device)
            with state.autocast():
                view = state.view(micro_batch, objective.needs)
                losses = objective.loss(view, micro_batch)
            sums.add(losses, micro_batch)
    return sums.forward_result(batch, sums.reduce(_all_reduce()))


def _without_reduction(state: TorchState) -> contextlib.AbstractContextManager[None]:
    replica = state.replica
    return replica.no_sync() if isinstance(replica, DistributedDataParallel) else contextlib.nullcontext()


def _all_reduce() -> Callable[[torch.Tensor], object] | None:
    return dist.all_reduce if dist.is_initialized() else None
