"""One optimizer step over one global batch, and the same without gradient."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from swift.errors import TrainingError
from swift.toolkit import NonFiniteStep, accumulate, before_update, score, set_learning_rate
from swift_backend_deepspeed.advice import to_save_memory
from swift_backend_deepspeed.config import DeepSpeedOptions
from swift_backend_deepspeed.tensor_parallel import region_of

if TYPE_CHECKING:
    from swift.contracts import ForwardResult, Objective, Run, StepResult
    from swift.data.batch import Batch
    from swift_backend_deepspeed.shard import DeepSpeedState


def train_step(run: Run, state: DeepSpeedState, batch: Batch, objective: Objective) -> StepResult:
    """One step; where memory does not suffice, the error says what to lower."""
    try:
        return _train_step(run, state, batch, objective)
    except torch.OutOfMemoryError as error:
        advice = to_save_memory(run.config, run.options(DeepSpeedOptions).content)
        raise TrainingError(f"Step {state.step + 1} did not fit into memory: {error}", hint=advice) from None


def _train_step(run: Run, state: DeepSpeedState, batch: Batch, objective: Objective) -> StepResult:
    """Micro-batches through the engine; it adds up, clips and updates when it is told that the last one is through."""
    engine = state.engine

    @contextlib.contextmanager
    def around(last: bool) -> Iterator[None]:
        engine.set_gradient_accumulation_boundary(last)
        yield

    def backward(loss: torch.Tensor) -> None:
        # DeepSpeed takes the mean over all that it has as data parallel, processes that share tokens of a sample too.
        engine.backward(loss * (dist.get_world_size() // run.config.parallel.tp), scale_wrt_gas=False)

    state.watch.step_begins()
    passes = batch.most_micro_batches(run.topology.data_size)
    view = state.answers
    view.train()
    sums = accumulate(view, batch, objective, state.arithmetic, around=around, passes=passes, backward=backward)
    reduced = sums.reduce(_add_up(run))
    learning_rate = run.schedule(state.step)
    set_learning_rate(state.partitions.optimizer, learning_rate)
    if run.config.train.detect_nan and not math.isfinite(reduced[0]):
        raise NonFiniteStep(reduced[0] / batch.weight, math.nan, sums.culprits())
    state.watch.update_begins()
    grad_norm, skipped = _update(state)
    state.watch.step_ends(batch)
    if skipped and run.config.train.detect_nan and not engine.fp16_enabled():
        raise NonFiniteStep(reduced[0] / batch.weight, grad_norm, sums.culprits())
    state.step += 1
    return sums.step_result(batch, reduced, grad_norm=grad_norm, learning_rate=learning_rate, skipped=skipped)


def _update(state: DeepSpeedState) -> tuple[float, bool]:
    """The gradient norm before clipping, and whether the update was left out because it is not finite."""
    engine = state.engine
    before_update()
    if state.stage == 0:
        norm = _norm_of(state.model)
        if not math.isfinite(norm):
            return norm, True
        engine.step()
        return norm, False
    engine.step()
    skipped = bool(engine.optimizer.overflow)
    return math.inf if skipped else float(engine.get_global_grad_norm() or 0.0), skipped


def _norm_of(model: torch.nn.Module) -> float:
    """Return the gradient norm under ZeRO 0: replicated gradients plus this process's AutoTP shards."""
    whole: list[torch.Tensor] = []
    parts: list[torch.Tensor] = []
    group = None
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        region = region_of(parameter)
        (whole if region is None else parts).append(parameter.grad)
        group = group if region is None else region.group
    squares = torch.nn.utils.get_total_norm(parts).double().square() if parts else torch.zeros((), dtype=torch.float64)
    if group is not None:
        dist.all_reduce(squares, group=group)
    return float((squares + torch.nn.utils.get_total_norm(whole).double().square()).sqrt())


def forward(run: Run, state: DeepSpeedState, batch: Batch, objective: Objective) -> ForwardResult:
    """Views and sums only."""
    passes = batch.most_micro_batches(run.topology.data_size)
    return score(state.answers, state.model, batch, objective, state.arithmetic, all_reduce=_add_up(run), passes=passes)


def _add_up(run: Run) -> Callable[[torch.Tensor], None]:
    sharing = run.world.size // run.topology.data_size

    def add_up(table: torch.Tensor) -> None:
        # Processes that share a slice of the batch all counted it; sums of a batch are small numbers of fp64.
        dist.all_reduce(table)
        table.div_(sharing)

    return add_up
