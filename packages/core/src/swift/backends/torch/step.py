"""One optimizer step over one global batch, and the same without gradient."""

from __future__ import annotations

from swift.backends.torch.state import TorchState
from swift.contracts import ForwardResult, Objective, Run, StepResult
from swift.data.batch import Batch
from swift.train.steps import gradient_view, update


def train_step(run: Run, state: TorchState, batch: Batch, objective: Objective) -> StepResult:
    """Accumulate micro-batches, add gradients up across processes, clip, update."""
    state.rotate(run, state.step)
    with gradient_view(state.optimizer):
        sums = state.accumulate(run, batch, objective)
        state.reduce_gradients(run)
        state.unscale()
        grad_norm = state.clip(run)
        try:
            result = update(
                run,
                state,
                batch,
                sums,
                optimizer=state.optimizer,
                arithmetic=state.arithmetic,
                grad_norm=grad_norm,
                all_reduce=state.all_reduce,
            )
        finally:
            state.drop_gradients()
        if state.view.routers is not None and not result.skipped:
            state.view.routers.follow(sums.expert_load)
        return result


def forward(run: Run, state: TorchState, batch: Batch, objective: Objective) -> ForwardResult:
    """Compute views and sums only."""
    return state.score(run, batch, objective)
