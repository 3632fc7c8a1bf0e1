"""A round in memory: prompts, the answers to them, and what is known of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Prompt:
    """One prompt of the data set."""

    number: int
    """Its sample in the training set: the same in every run over the same data."""
    turn: int
    """Its place in the order in which the run takes prompts."""
    token_ids: np.ndarray
    """int32, up to where the assistant speaks."""
    messages: list[dict[str, Any]]
    """The conversation so far."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's other columns, for rewards."""
    place: str = ""
    """Where the row stands, for people."""


@dataclass
class DrawnAnswer:
    """One answer, and what became of it."""

    prompt: int
    """Index into `Round.prompts`."""
    place: int
    """Its number within the group, from 0."""
    token_ids: np.ndarray
    """int32, with the token that ended it, where one did."""
    logps: np.ndarray
    """float32: log-probability of each token in the distribution that it was drawn from, as the engine says."""
    finish_reason: str
    """'stop' or 'length'."""
    text: str
    """Without the token that ended it."""
    rewards: dict[str, float | None] = field(default_factory=dict)
    """By function; None where it does not apply or could not be computed."""
    remarks: dict[str, str] = field(default_factory=dict)
    """By function: what it printed, or why it failed."""
    reward: float = 0.0
    """The weighted sum."""
    advantages: np.ndarray | None = None
    """float64, one per token."""
    old_logps: np.ndarray | None = None
    """float32: of the policy at the beginning of the round, by the model in training."""
    ref_logps: np.ndarray | None = None
    """float32: of the reference."""
    is_weights: np.ndarray | None = None
    """float32: importance weights against the engine."""
    entropies: np.ndarray | None = None
    """float32, in nats, where asked for."""
    why_not: str = ""
    """Why nothing is learned from it; empty where something is."""
    failed: list[str] = field(default_factory=list)
    """Rewards that could not be computed: nothing is learned from the answer then."""

    @property
    def scored(self) -> bool:
        """Whether it has a reward: one that applies, and none that failed."""
        return not self.failed and any(value is not None for value in self.rewards.values())

    @property
    def learned(self) -> bool:
        """Whether a step learns from it."""
        return not self.why_not


@dataclass
class Round:
    """The answers that some optimizer steps learn from."""

    number: int
    version: int
    """The optimizer step whose weights wrote the answers: how many steps had been made."""
    prompts: list[Prompt]
    answers: list[DrawnAnswer]
    """By prompt, and by place within the group. Those of dropped groups too."""
    facts: dict[str, float] = field(default_factory=dict)
    """Figures of the round: mean rewards, lengths, the gap between engine and trainer, seconds."""
    dropped: dict[int, str] = field(default_factory=dict)
    """Index of a prompt whose group no step learns from → why."""
    cursor: int = 0
    """How many prompts of the run's order are used up, this round's included."""

    def group(self, prompt: int) -> list[DrawnAnswer]:
        """Return the answers to a prompt."""
        return [answer for answer in self.answers if answer.prompt == prompt]


def draw_number(turn: int, place: int) -> int:
    """Return the number that alone decides, with the run's seed, how an answer is drawn."""
    return (turn << 16) | place
