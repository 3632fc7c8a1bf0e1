"""The parts of an optimizer step that backends on torch's own autograd share.

    sums = accumulate(view, batch, objective, arithmetic)     gradients of this process's slice, as sums
    ... add gradients up across processes, clip: the backend's own business ...
    result = update(run, state, batch, sums, ...)             or, without gradient: score(...)

Losses are divided by the weight of the global batch before the backward pass: what remains is adding up.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from swift.checkpoint import before_update
from swift.contracts import UsesGradientView
from swift.models.precision import resolve_dtype
from swift.models.tuners import adapters_off
from swift.optim.build import set_learning_rate
from swift.processes.watchdog import heartbeat
from swift.train.sums import GlobalSums, NonFiniteStep

if TYPE_CHECKING:
    from swift.contracts import ForwardResult, Objective, Run, StepResult, TrainState
    from swift.data.batch import Batch, MicroBatch

AllReduce = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Arithmetic:
    """Device and precision of the arithmetic, on fp32 masters."""

    device: torch.device
    compute: torch.dtype
    scaler: torch.amp.GradScaler
    """Switched off unless the precision is float16."""

    @classmethod
    def of(cls, run: Run) -> Arithmetic:
        """Choose the arithmetic from the run's `model.dtype` and its device."""
        device = torch.device(run.topology.device)
        name, _ = resolve_dtype(run.config.model.dtype, device)
        return cls(device, getattr(torch, name), torch.amp.GradScaler(device.type, enabled=name == "float16"))

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context with arithmetic in the requested precision."""
        return torch.autocast(self.device.type, self.compute, enabled=self.compute is not torch.float32)


def _alone(_last: bool) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


def accumulate(
    view: torch.nn.Module,
    batch: Batch,
    objective: Objective,
    arithmetic: Arithmetic,
    *,
    around: Callable[[bool], AbstractContextManager[Any]] = _alone,
    passes: int = 0,
    backward: Callable[[torch.Tensor], object] = torch.autograd.backward,
) -> GlobalSums:
    """Run forward and backward passes over all micro-batches. `view` is a `ViewModule`, or one that is wrapped.

    `around(last)` surrounds each micro-batch: gradients need to be added up across processes only with the last one.
    Where every pass through the model is collective, `passes` is how many each process makes, with dummies that
    count for nothing where it has fewer micro-batches.
    """
    sums = GlobalSums(arithmetic.device)
    last = max(len(batch), passes) - 1
    for index, (micro_batch, counts) in enumerate(_passes(batch, passes)):
        seed_dropout(micro_batch.seed, arithmetic.device)
        micro_batch = micro_batch.to(arithmetic.device)
        with around(index == last):
            with arithmetic.autocast():
                viewed = view(micro_batch, objective.needs)
                losses = objective.loss(viewed, micro_batch)
            share = losses.loss / batch.weight if counts else losses.loss * 0.0
            if viewed.router_loss is not None:
                # The rows of a process that has none are those of others.
                share = share + viewed.router_loss * (float(counts and bool(batch.rows)) / max(1, batch.tokens))
            backward(arithmetic.scaler.scale(share))
        if counts:
            sums.add(losses, micro_batch)
            sums.add_routing(viewed, micro_batch, counts=bool(batch.rows))
    return sums


def seed_dropout(seed: int, device: torch.device) -> None:
    """Seed the generator of dropout on a device."""
    if device.type == "cpu":
        # torch.manual_seed writes down the stack for every kind of device that is not there, each time.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _passes(batch: Batch, least: int) -> Iterator[tuple[MicroBatch, bool]]:
    """Yield micro-batches, and whether they count."""
    for micro_batch in batch.micro_batches():
        heartbeat()
        yield micro_batch, True
    yield from ((batch.dummy(), False) for _ in range(least - len(batch)))


@contextlib.contextmanager
def gradient_view(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, weights are those at which the optimizer takes gradients; its update makes them those that are saved."""
    if not isinstance(optimizer, UsesGradientView):
        yield
        return
    before_update()
    optimizer.to_gradient_view()
    try:
        yield
    finally:
        optimizer.to_weights()


def update(
    run: Run,
    state: TrainState,
    batch: Batch,
    sums: GlobalSums,
    *,
    optimizer: torch.optim.Optimizer,
    arithmetic: Arithmetic,
    grad_norm: float,
    all_reduce: AllReduce | None,
) -> StepResult:
    """Let the optimizer update, unless loss or gradient is not finite, and return the result of the step.

    Gradients are unscaled, added up and clipped by now; `grad_norm` is from before clipping. `all_reduce` adds up over
    the processes that hold other slices of the batch.
    """
    scaler = arithmetic.scaler
    learning_rate = run.schedule(state.step)
    reduced = sums.reduce(all_reduce)
    finite = math.isfinite(grad_norm) and math.isfinite(reduced[0])
    # Under fp16 an overflow is expected now and then: the scaler leaves the update out and lowers its scale.
    if run.config.train.detect_nan and not finite and not (scaler.is_enabled() and math.isfinite(reduced[0])):
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteStep(reduced[0] / batch.weight, grad_norm, sums.nonfinite_samples())
    set_learning_rate(optimizer, learning_rate)
    before_update()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    state.step += 1
    return sums.step_result(batch, reduced, grad_norm=grad_norm, learning_rate=learning_rate, skipped=not finite)


@torch.no_grad()
def score(
    view: torch.nn.Module,
    model: torch.nn.Module,
    batch: Batch,
    objective: Objective,
    arithmetic: Arithmetic,
    *,
    all_reduce: AllReduce | None,
    passes: int = 0,
) -> ForwardResult:
    """Compute views and sums, without the adapters of `model` where the objective declares `adapters_off`.

    With `batch.dropout` there is dropout: that of `accumulate` on the same batch.
    """
    view.train(batch.dropout)
    sums = GlobalSums(arithmetic.device)
    with adapters_off(model) if objective.adapters_off else contextlib.nullcontext():
        for micro_batch, counts in _passes(batch, passes):
            if batch.dropout:
                seed_dropout(micro_batch.seed, arithmetic.device)
            micro_batch = micro_batch.to(arithmetic.device)
            with arithmetic.autocast():
                losses = objective.loss(view(micro_batch, objective.needs), micro_batch)
            if counts:
                sums.add(losses, micro_batch)
    return sums.forward_result(batch, sums.reduce(all_reduce))
