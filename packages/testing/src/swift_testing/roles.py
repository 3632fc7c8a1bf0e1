"""Trials with two models in one process group: a policy, and a critic that is trained in turn with it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from swift.config.sections import ModelSection
from swift.contracts import ModelRole, StepResult
from swift.train import Job, Loop
from swift_testing.cases import SAVED_AT
from swift_testing.trial import Trial

CRITIC = "critic"


@dataclass
class BothOutcome:
    """Observations of one process in a run with two models."""

    policy: dict[int, StepResult] = field(default_factory=dict)
    """By step, counted from 1."""
    critic: dict[int, StepResult] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    """The critic's at the end, on the main process."""
    checkpoint: Path | None = None


def train_both(trial: Trial, model: Path, *, checkpoint: Path | None = None, steps: int | None = None) -> BothOutcome:
    """Train the trial's model and `model` in turn, from the start or on from a checkpoint that holds both.

    The critic makes its steps from the same batches and with the same settings, so that its numbers are those of a run
    that trains it alone.
    """
    changes = {"checkpoint.save_steps": SAVED_AT} if checkpoint is None else {"checkpoint.resume": str(checkpoint)}
    outcome = BothOutcome()
    with trial.opened(changes, [role_of(model)]) as job:
        loop = Loop(job)
        with closing(loop.steps()) as records:
            for record in islice(records, steps):
                outcome.policy[record.step] = record.result
                _train_critic(job, record.step, outcome.critic)
        outcome.checkpoint = loop.saver.last
        for name, tensor in job.roles[CRITIC].iter_weights():
            if job.is_main:
                outcome.weights[name] = tensor.detach().cpu().float().numpy().copy()
    return outcome


def role_of(model: Path) -> ModelRole:
    """Return the critic of these trials."""
    return ModelRole(CRITIC, ModelSection(path=str(model)))


def _train_critic(job: Job, until: int, results: dict[int, StepResult]) -> None:
    critic = job.roles[CRITIC]
    while critic.state.step < until:
        batch = job.batch_schedule.batch(critic.state.step, job.topology.data_rank, job.topology.data_size)
        result = critic.train_step(batch, job.objective)
        results[critic.state.step] = result
