"""Evaluation during training: the objective's own loss and metrics over the validation set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from swift.contracts import Objective, Run, TrainState
    from swift.data.batch import Batch
    from swift.plugins.hooks import Hooks


def evaluate(
    hooks: Hooks,
    run: Run,
    state: TrainState,
    batches: Iterable[Batch],
    ready: Callable[[Batch], tuple[Batch, Objective]],
) -> dict[str, float]:
    """Means over the whole set, the same on every process: 'loss', and the objective's metrics.

    `ready` completes a batch with what the objective needs besides the model (reference log-probabilities).
    """
    loss = weight = 0.0
    sums: dict[str, tuple[float, float]] = {}
    for batch in batches:
        completed, objective = ready(batch)
        result = hooks.forward(run, state, completed, objective)
        loss += result.loss * result.weight
        weight += result.weight
        for name, (value, count) in result.metrics.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + value, before[1] + count)
    means = {name: value / count for name, (value, count) in sums.items() if count}
    return {"loss": loss / weight if weight else float("nan"), **means}
