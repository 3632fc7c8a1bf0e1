"""The contract of rounds: what a run holds and does besides its optimizer steps, as planners count it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EngineModel:
    """A model that an inference engine holds in the run's processes, whole, beside the models in training."""

    name: str
    """'rollout engine'"""
    model: str | None = None
    """Its folder or name; None is the policy's."""
    everywhere: bool = True
    """Whether every process holds it, or the main one alone."""


@dataclass(frozen=True)
class RoundWork:
    """The answer of `Objective.rounds`. Counts are means over the steps, for each row of a global batch."""

    completion_tokens: int = 0
    """Most tokens of an answer; a row has so many more than `data.max_length`, which its prompt may have."""
    completions: float = 0.0
    """Answers that the policy draws."""
    sampled_here: bool = True
    """Whether the run's own devices draw them."""
    at_once: int | None = None
    """Answers that an engine draws at a time; None leaves it to the engine."""
    scored: float = 0.0
    """How often the policy is evaluated without gradient."""
    role_forwards: Mapping[str, float] = field(default_factory=dict)
    """The same of the roles, by name."""
    engines: Sequence[EngineModel] = ()
