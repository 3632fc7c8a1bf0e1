"""A round in memory: prompts, their completions, and the values of each completion."""

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
    position: int
    """Its position in the order in which the run takes prompts."""
    token_ids: np.ndarray
    """int32, up to the beginning of the completion."""
    messages: list[dict[str, Any]]
    """The conversation so far."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's other columns, for rewards."""
    source: str = ""
    """File and line of the row, for messages."""
    tools: list[Any] = field(default_factory=list)
    """Tools for the chat template."""


@dataclass
class Episode:
    """The turns of a completion in an environment."""

    messages: list[dict[str, Any]]
    """The whole conversation; it ends with the model's last message."""
    turns: int
    """How many turns the model took."""
    token_ids: list[int]
    """All tokens after `begins_with`: the model's and, between them, the environment's."""
    written: list[bool]
    """For each of these tokens: whether the model wrote it."""
    begins_with: list[int] | None = None
    """The first tokens of the conversation, where they differ from the prompt's."""
    text: str = ""
    """The model's last message."""
    reward: float | None = None
    """The sum of the environment's rewards; None where it gave none."""
    rewards: list[float | None] = field(default_factory=list)
    """By turn."""
    info: dict[str, Any] = field(default_factory=dict)
    """Other values that the environment reported."""
    failure: str = ""
    """Why it has no reward; empty where it has one."""
    output: str = ""
    """What the environment printed where it failed."""

    def seen_by_rewards(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of a row with what the environment reported, under ms-swift's name for it."""
        reported = {"num_turns": self.turns, "total_reward": self.reward, "step_rewards": self.rewards}
        return {**columns, "rollout_infos": {**reported, **self.info}}


@dataclass
class RolloutCompletion:
    """One completion with its rewards and the values of its tokens."""

    prompt: int
    """Index into `Round.prompts`."""
    index: int
    """Its index within the group, from 0."""
    token_ids: np.ndarray
    """int32, with the token that ended it, where one did. An episode has the tokens of all its turns, concatenated; the
    same holds for all values of tokens."""
    logps: np.ndarray
    """float32: log-probability of each token under the distribution that it was sampled from, as the engine reports."""
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
    """float32, in nats, where requested."""
    teacher_logps: np.ndarray | None = None
    """float32: of the teacher."""
    old_values: np.ndarray | None = None
    """float32: of the critic at the beginning of the round."""
    returns: np.ndarray | None = None
    """float64: what the critic learns."""
    episode: Episode | None = None
    """Its turns, in runs with an environment."""
    why_not: str = ""
    """Why no step learns from it; empty where one does."""
    failed: list[str] = field(default_factory=list)
    """Rewards that could not be computed: no step learns from the completion then."""

    def layout(self, prompt: Prompt) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return the tokens before the completion, its tokens, and which of them the model wrote; None for all."""
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
    """The completions that some optimizer steps learn from."""

    number: int
    version: int
    """How many optimizer steps had made the weights that the completions were sampled with."""
    prompts: list[Prompt]
    completions: list[RolloutCompletion]
    """Ordered by prompt and by index within the group, including dropped groups."""
    facts: dict[str, float] = field(default_factory=dict)
    """Figures of the round: mean rewards, lengths, the train-inference mismatch, seconds."""
    dropped: dict[int, str] = field(default_factory=dict)
    """Index of a prompt whose group no step learns from → why."""
    cursor: int = 0
    """How many prompts of the run's order are used up, this round's included."""

    @property
    def kept(self) -> list[RolloutCompletion]:
        """The completions whose group was not dropped."""
        return [completion for completion in self.completions if completion.prompt not in self.dropped]

    def group(self, prompt: int) -> list[RolloutCompletion]:
        """Return the completions to a prompt."""
        return [completion for completion in self.completions if completion.prompt == prompt]


def completion_number(position: int, index: int) -> int:
    """Return the number that decides, together with the run's seed alone, how a completion is sampled."""
    return (position << 16) | index
