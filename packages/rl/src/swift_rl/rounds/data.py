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
    tools: list[Any] = field(default_factory=list)
    """What the chat template is told of tools."""


@dataclass
class Episode:
    """The turns of an answer that was given in an environment."""

    messages: list[dict[str, Any]]
    """The conversation with all answers; the last one ends it."""
    turns: int
    """How many answers the model gave."""
    token_ids: list[int]
    """All tokens after those that the conversation begins with: the model's and, between them, what it was told."""
    written: list[bool]
    """Of each of these tokens: whether the model wrote it."""
    begins_with: list[int] | None = None
    """The tokens that the conversation begins with, where they are not the prompt's."""
    text: str = ""
    """The last answer."""
    reward: float | None = None
    """The sum of the environment's rewards; None where it gave none."""
    rewards: list[float | None] = field(default_factory=list)
    """By turn."""
    info: dict[str, Any] = field(default_factory=dict)
    """What the environment told besides."""
    failure: str = ""
    """Why it has no reward; empty where it has one."""
    output: str = ""
    """What the environment printed where it failed."""

    def seen_by_rewards(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of a row with what the environment told, under ms-swift's name for it."""
        told = {"num_turns": self.turns, "total_reward": self.reward, "step_rewards": self.rewards}
        return {**columns, "rollout_infos": {**told, **self.info}}


@dataclass
class DrawnAnswer:
    """One answer, and what became of it."""

    prompt: int
    """Index into `Round.prompts`."""
    place: int
    """Its number within the group, from 0."""
    token_ids: np.ndarray
    """int32, with the token that ended it, where one did. Of an episode the tokens of all answers, one after the other;
    so are all values of tokens."""
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
    token_values: dict[str, np.ndarray] = field(default_factory=dict)
    """What else an objective knows of its tokens, by name: arrays whose first axis is the tokens."""
    episode: Episode | None = None
    """The turns, where it was given in an environment."""
    why_not: str = ""
    """Why nothing is learned from it; empty where something is."""
    failed: list[str] = field(default_factory=list)
    """Rewards that could not be computed: nothing is learned from the answer then."""

    def layout(self, prompt: Prompt) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return the tokens before the answer, those from there on, and which of these are its own; None for all."""
        if self.episode is None:
            return prompt.token_ids, self.token_ids, None
        begins_with = self.episode.begins_with
        before = prompt.token_ids if begins_with is None else np.array(begins_with, dtype=np.int32)
        return before, np.array(self.episode.token_ids, dtype=np.int32), np.array(self.episode.written, dtype=bool)

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
