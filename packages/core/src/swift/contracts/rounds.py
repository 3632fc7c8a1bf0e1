"""The contract of rounds: what a run holds and does besides its optimizer steps, as planners count it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EngineModel:
    """A model that an inference engine holds in the run's processes, whole, beside the models in training.

    - `name`: 'rollout engine'
    - `model`: Its folder or name; None is the policy's.
    - `everywhere`: Whether every process holds it, or the main one alone.
    """

    name: str
    model: str | None = None
    everywhere: bool = True


@dataclass(frozen=True)
class RoundWork:
    """The answer of `Objective.rounds`. Counts are means over the steps, for each row of a global batch.

    - `completion_tokens`: Most tokens of an answer; a row has so many more than `data.max_length`, which its prompt may
      have.
    - `completions`: Answers that the policy draws.
    - `sampled_here`: Whether the run's own devices draw them.
    - `at_once`: Answers that an engine draws at a time; None leaves it to the engine.
    - `scored`: How often the policy is evaluated without gradient.
    - `role_forwards`: The same of the roles, by name.
    """

    completion_tokens: int = 0
    completions: float = 0.0
    sampled_here: bool = True
    at_once: int | None = None
    scored: float = 0.0
    role_forwards: Mapping[str, float] = field(default_factory=dict)
    engines: Sequence[EngineModel] = ()
