"""One optimizer step over one global batch, and evaluation without gradient."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from swift.contracts import ForwardResult, Objective, Run, StepResult
from swift.data.batch import Batch
from swift.errors import TrainingError
from swift.toolkit import NonFiniteStep, accumulate, before_update, score, set_learning_rate, trains_on_images
from swift_backend_deepspeed.config import DeepSpeedOptions
from swift_backend_deepspeed.estimate import to_save_memory
from swift_backend_deepspeed.shard import DeepSpeedState
from swift_backend_deepspeed.tensor_parallel import tensor_shard_of


def train_step(run: Run, state: DeepSpeedState, batch: Batch, objective: Objective) -> StepResult:
    """Do one step; where memory does not suffice, the error says which settings to lower."""
    try:
        return _train_step(run, state, batch, objective)
    except torch.OutOfMemoryError as error:
        advice = to_save_memory(run.config, run.options(DeepSpeedOptions).content)
        raise TrainingError(f"Step {state.step + 1} did not fit into memory: {error}", hint=advice) from None


def _train_step(run: Run, state: DeepSpeedState, batch: Batch, objective: Objective) -> StepResult:
    """Run micro-batches through the engine, which accumulates, and clips and updates after the last one."""
    engine = state.engine

    @contextlib.contextmanager
    def around(last: bool) -> Iterator[None]:
        engine.set_gradient_accumulation_boundary(last)
        yield

    def backward(loss: torch.Tensor) -> None:
        # DeepSpeed takes the mean over all that it has as data parallel, processes that share tokens of a sample too.
        engine.backward(loss * (dist.get_world_size() // run.config.parallel.tp), scale_wrt_gas=False)

    state.watch.step_begins()
    batch = _with_stand_ins(run, state, batch)
    passes = batch.most_micro_batches(run.topology.data_size)
    view = state.engine_view
    view.train()
    sums = accumulate(view, batch, objective, state.arithmetic, around=around, passes=passes, backward=backward)
    reduced = sums.reduce(_add_up(run))
    learning_rate = run.schedule(state.step)
    set_learning_rate(state.partitions.optimizer, learning_rate)
    if run.config.train.detect_nan and not math.isfinite(reduced[0]):
        raise NonFiniteStep(reduced[0] / batch.weight, math.nan, sums.nonfinite_samples())
    state.watch.update_begins()
    grad_norm, skipped = _update(state)
    state.watch.step_ends(batch)
    if skipped and run.config.train.detect_nan and not engine.fp16_enabled():
        raise NonFiniteStep(reduced[0] / batch.weight, grad_norm, sums.nonfinite_samples())
    if state.view.routers is not None and not skipped:
        state.view.routers.follow(sums.expert_load)
    state.step += 1
    return sums.step_result(batch, reduced, grad_norm=grad_norm, learning_rate=learning_rate, skipped=skipped)


def _with_stand_ins(run: Run, state: DeepSpeedState, batch: Batch) -> Batch:
    """Return the batch with a stand-in wherever a micro-batch without an image would leave other processes waiting.

    ZeRO 3 gathers the encoder's weights when it is called, trained or not; below it, gradients alone are shared.
    """
    waits = run.media_reader is not None and (state.stage == 3 or trains_on_images(run, state.model))
    return batch.with_stand_ins() if waits else batch


def _update(state: DeepSpeedState) -> tuple[float, bool]:
    """Return the gradient norm before clipping, and whether the update was skipped because it is not finite."""
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
    replicated: list[torch.Tensor] = []
    shards: list[torch.Tensor] = []
    group = None
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        tensor_shard = tensor_shard_of(parameter)
        (replicated if tensor_shard is None else shards).append(parameter.grad)
        group = group if tensor_shard is None else tensor_shard.group
    squares = (
        torch.nn.utils.get_total_norm(shards).double().square() if shards else torch.zeros((), dtype=torch.float64)
    )
    if group is not None:
        dist.all_reduce(squares, group=group)
    return float((squares + torch.nn.utils.get_total_norm(replicated).double().square()).sqrt())


def forward(run: Run, state: DeepSpeedState, batch: Batch, objective: Objective) -> ForwardResult:
    """Compute views and sums only."""
    batch = _with_stand_ins(run, state, batch)
    passes = batch.most_micro_batches(run.topology.data_size)
    return score(
        state.engine_view, state.model, batch, objective, state.arithmetic, all_reduce=_add_up(run), passes=passes
    )


def _add_up(run: Run) -> Callable[[torch.Tensor], None]:
    sharing = run.world.size // run.topology.data_size

    def add_up(table: torch.Tensor) -> None:
        # Processes that share a slice of the batch all counted it; sums of a batch are small numbers of fp64.
        dist.all_reduce(table)
        table.div_(sharing)

    return add_up
