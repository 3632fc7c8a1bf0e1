"""Evaluation during training: the objective's loss and metrics over the validation set, or its schedule's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.config.incompatibilities import NAME_A_VALIDATION_SET, never_evaluated
from swift.terminal import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from swift.contracts import Objective, Run, TrainState
    from swift.data.batch import Batch
    from swift.plugins.hooks import Hooks
    from swift.train.job import Job


def can_evaluate(job: Job) -> bool:
    """Return whether there is something to evaluate: a validation set, or a schedule that names its own numbers."""
    names = job.batch_schedule.evaluation_metrics
    return job.validation is not None if names is None else bool(names)


def evaluation_of(job: Job, when: str) -> Mapping[str, float]:
    """Evaluate the model as it is now, by the schedule where it does that; the same on every process."""
    job.watchdog.at(f"the evaluation {when}")
    with waiting(f"evaluating {when}"):
        if job.batch_schedule.evaluation_metrics is not None:
            return job.comms.broadcast(job.batch_schedule.evaluate(job.state.step))
        batches = job.validation_batches()
        assert batches is not None
        return evaluate(job.hooks, job.run, job.state, batches, job.ready)


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
        result = hooks.swift_forward(run, state, completed, objective)
        loss += result.loss * result.weight
        weight += result.weight
        for name, (value, count) in result.metrics.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + value, before[1] + count)
    means = {name: value / count for name, (value, count) in sums.items() if count}
    return {"loss": loss / weight if weight else float("nan"), **means}


def check_evaluation(job: Job) -> None:
    """Check now what the first evaluation would otherwise find out, or nothing would."""
    train, names = job.run.config.train, job.batch_schedule.evaluation_metrics
    if not can_evaluate(job) or train.eval_strategy == "no":
        _check_nothing_waits(job, no_data=not can_evaluate(job))
        return
    batches = job.validation_batches()
    if names is not None:
        job.best.check(names)
    elif job.best.metric != "loss" and batches is not None:
        batch, objective = job.ready(next(batches))
        result = job.hooks.swift_forward(job.run, job.state, batch, objective)
        job.best.check({"loss", *result.metrics})
    save_steps = job.run.config.checkpoint.save_steps
    if save_steps and train.eval_steps and save_steps % train.eval_steps:
        job.run.say(
            f"The best checkpoint is chosen among steps that are evaluated and saved: make save_steps ({save_steps}) "
            f"a multiple of eval_steps ({train.eval_steps}) to choose among all that are saved."
        )


def _check_nothing_waits(job: Job, *, no_data: bool) -> None:
    """Refuse what needs evaluations in a run that has none."""
    train = job.run.config.train
    if (error := never_evaluated(job.run.config, no_data=no_data)) is not None:
        raise error
    if no_data and (train.eval_strategy in ("steps", "epoch") or train.eval_on_start):
        job.run.say(f"There is no validation set, so nothing is evaluated. {NAME_A_VALIDATION_SET}")
