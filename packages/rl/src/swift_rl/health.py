"""Detect runs that learn nothing, say why, and end them.

A round teaches something if the completions of a group have different advantages. Idle rounds in a row end a run,
unless its reward has risen since its first round: it may have learned all that its prompts can teach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from swift.errors import TrainingError

if TYPE_CHECKING:
    from swift_rl.rounds.data import RolloutCompletion, Round

MOST = 0.9
"""Fraction of the completions from which on a sign is named as the cause."""
LEAST_ENTROPY = 0.01
"""Nats per token below which the completions of a prompt are practically identical."""
REFERENCE_TOLERANCE = 1e-3
"""Nats per token by which a reference may differ from the model that it copies, by rounding."""


class NothingToLearn(TrainingError):
    """A run of online learning makes no progress with its settings."""


class Health:
    """Checks every round: reports each cause once, and raises after too many idle rounds in a row."""

    def __init__(self, max_idle_rounds: int, say: Callable[[str], None]) -> None:
        self._most = max_idle_rounds
        self._say = say
        self._idle = 0
        self._first: float | None = None
        self._reported: set[str] = set()

    def look(self, made: Round) -> None:
        """Check a round whose advantages are known; the same on every process."""
        if made.number == 0:
            _compare_with_reference(made)
        rewards = _rewards(made)
        reward = float(rewards.mean()) if len(rewards) else float("nan")
        if self._first is None and len(rewards):
            self._first = reward
        if teaches(made):
            self._idle = 0
            return
        self._idle += 1
        what, advice = cause_of(made)
        gained = self._first is not None and reward > self._first
        if self._most and self._idle >= self._most and not gained:
            rounds = "round" if self._idle == 1 else f"{self._idle} rounds"
            raise NothingToLearn(f"The last {rounds} taught nothing: {what}.", hint=f"{advice} (max_idle_rounds)")
        if gained and _is_constant(rewards):
            what, advice = f"every completion has the reward {reward:g}", "There may be no more to learn."
        if what not in self._reported:
            self._reported.add(what)
            self._say(f"Round {made.number + 1} teaches nothing: {what}. {advice}")


def teaches(made: Round) -> bool:
    """Return whether a step learns from any completion of a round; without advantages it learns from all."""
    return any(each.learned and (each.advantages is None or np.any(each.advantages != 0)) for each in made.kept)


def cause_of(made: Round) -> tuple[str, str]:
    """Return why a round teaches nothing, and what to change."""
    completions, rewards = made.completions, _rewards(made)
    groups = [group for prompt in range(len(made.prompts)) if (group := made.group(prompt))]
    truncated = _part(each.finish_reason == "length" for each in completions)
    alike = _part(len(group) > 1 and len({each.text for each in group}) == 1 for group in groups)
    entropy = entropy_of(completions)
    if _part(bool(each.rewards) and not each.scored for each in completions) >= MOST:
        return (
            "no reward could be computed",
            "The round's page shows the errors; repeat one completion with swift rewards test.",
        )
    if not any(each.rewards for each in completions):
        return (
            "teacher and policy agree on every token",
            "Pass a --teacher_model that differs from the model in training.",
        )
    if truncated >= MOST:
        return (
            f"{truncated:.0%} of the completions were cut off at max_completion_length",
            "Raise --max_completion_length, or start from a model that ends its completions.",
        )
    if alike >= MOST:
        return (
            f"the completions of each prompt are identical (entropy {entropy:.2g} nats per token)",
            "Raise --temperature, lower the learning rate, or start from an earlier checkpoint.",
        )
    if _is_constant(rewards):
        return (
            f"every completion has the reward {rewards[0]:g}",
            "The prompts may be too hard, or no completion has the form that the reward expects: see the round's page.",
        )
    if entropy < LEAST_ENTROPY:
        return (
            f"the entropy fell to {entropy:.2g} nats per token",
            "Raise --temperature, lower the learning rate, or start from an earlier checkpoint.",
        )
    return (
        "within each group all completions have the same reward",
        "Raise --num_generations, or choose prompts that the model solves some of the time.",
    )


def entropy_of(completions: Iterable[RolloutCompletion]) -> float:
    """Return nats per token: the mean of measured entropies, else of -log p of sampled tokens, which estimates it."""
    values = [-each.logps if each.entropies is None else each.entropies for each in completions if len(each.token_ids)]
    return float(np.concatenate(values).mean()) if values else 0.0


def _rewards(made: Round) -> np.ndarray:
    return np.array([each.reward for each in made.completions if each.scored])


def _is_constant(rewards: np.ndarray) -> bool:
    return len(rewards) > 1 and bool(np.ptp(rewards) == 0)


def _part(found: Iterable[bool]) -> float:
    flags = list(found)
    return sum(flags) / len(flags) if flags else 0.0


def _compare_with_reference(made: Round) -> None:
    """Raise if the reference is not the model that the run begins with."""
    apart = [
        np.abs(each.old_logps - each.ref_logps)
        for each in made.completions
        if each.old_logps is not None and each.ref_logps is not None and len(each.token_ids)
    ]
    difference = float(np.concatenate(apart).mean()) if apart else 0.0
    if difference > REFERENCE_TOLERANCE:
        raise NothingToLearn(
            f"Before the first step the reference differs from the model by {difference:.2g} nats per token; expected "
            "0.",
            hint="Start from the reference's weights with --tuner.dropout 0, or leave --beta out.",
        )
