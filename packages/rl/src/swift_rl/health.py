"""Detect runs that learn nothing, say why, and end them.

A round teaches something if the completions of a group have different advantages. Idle rounds in a row end a run,
unless its reward has risen since its first round: it may have learned all that its prompts can teach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Signs:
    """Figures of a round that show whether it teaches anything."""

    reward: float
    """Mean over the scored completions; nan without any."""
    taught: float
    """Fraction of the groups whose completions have different advantages."""
    truncated: float
    """Fraction of the completions that were cut off at `max_completion_length`."""
    unscorable: float
    """Fraction of the completions all of whose rewards failed or do not apply."""
    rewarded: bool
    """Whether completions have rewards; a run may learn from a teacher alone."""
    alike: float
    """Fraction of the groups whose completions all have the same text."""
    constant: bool
    """Whether all completions of the round have the same reward."""
    entropy: float
    """Nats per token: the round's entropies if it has them, else the mean of -log p of the sampled tokens."""
    off_reference: float | None
    """Mean |log policy − log reference| per token, if the round has both."""


def signs_of(made: Round) -> Signs:
    """Return the signs of a round."""
    completions = made.completions
    rewards = np.array([each.reward for each in completions if each.scored])
    by_prompt = {prompt: made.group(prompt) for prompt in range(len(made.prompts))}
    groups = [group for group in by_prompt.values() if group]
    return Signs(
        reward=float(rewards.mean()) if len(rewards) else float("nan"),
        taught=_part(prompt not in made.dropped and _teaches(group) for prompt, group in by_prompt.items()),
        truncated=_part(each.finish_reason == "length" for each in completions),
        unscorable=_part(bool(each.rewards) and not each.scored for each in completions),
        rewarded=any(each.rewards for each in completions),
        alike=_part(len(group) > 1 and len({each.text for each in group}) == 1 for group in groups),
        constant=len(rewards) > 1 and bool(np.ptp(rewards) == 0),
        entropy=_entropy(completions),
        off_reference=_off_reference(completions),
    )


class Health:
    """Checks every round: reports each cause once, and raises after too many idle rounds in a row."""

    def __init__(self, max_idle_rounds: int, say: Callable[[str], None]) -> None:
        self._most = max_idle_rounds
        self._say = say
        self._idle = 0
        self._first: float | None = None
        self._reported: set[str] = set()

    def look(self, made: Round) -> Signs:
        """Check a round whose advantages are known; the same on every process."""
        signs = signs_of(made)
        self._compare_with_reference(made, signs)
        if self._first is None and not np.isnan(signs.reward):
            self._first = signs.reward
        if signs.taught > 0:
            self._idle = 0
            return signs
        self._idle += 1
        what, advice = cause_of(signs)
        gained = self._first is not None and signs.reward > self._first
        if self._most and self._idle >= self._most and not gained:
            rounds = "round" if self._idle == 1 else f"{self._idle} rounds"
            raise NothingToLearn(f"The last {rounds} taught nothing: {what}.", hint=f"{advice} (max_idle_rounds)")
        if gained and signs.constant:
            what, advice = f"every completion has the reward {signs.reward:g}", "There may be no more to learn."
        if what not in self._reported:
            self._reported.add(what)
            self._say(f"Round {made.number + 1} teaches nothing: {what}. {advice}")
        return signs

    def _compare_with_reference(self, made: Round, signs: Signs) -> None:
        """Raise if the reference is not the model that the run begins with."""
        if made.number == 0 and signs.off_reference is not None and signs.off_reference > REFERENCE_TOLERANCE:
            raise NothingToLearn(
                f"Before the first step the reference differs from the model by {signs.off_reference:.2g} nats per "
                "token; expected 0.",
                hint="Start from the reference's weights with --tuner.dropout 0, or leave --beta out.",
            )


def cause_of(signs: Signs) -> tuple[str, str]:
    """Return why a round teaches nothing, and what to change."""
    if signs.unscorable >= MOST:
        return (
            "no reward could be computed",
            "The round's page shows the errors; repeat one completion with swift rewards test.",
        )
    if not signs.rewarded:
        return (
            "teacher and policy agree on every token",
            "Pass a --teacher_model that differs from the model in training.",
        )
    if signs.truncated >= MOST:
        return (
            f"{signs.truncated:.0%} of the completions were cut off at max_completion_length",
            "Raise --max_completion_length, or start from a model that ends its completions.",
        )
    if signs.alike >= MOST:
        return (
            f"the completions of each prompt are identical (entropy {signs.entropy:.2g} nats per token)",
            "Raise --temperature, lower the learning rate, or start from an earlier checkpoint.",
        )
    if signs.constant:
        return (
            f"every completion has the reward {signs.reward:g}",
            "The prompts may be too hard, or no completion has the form that the reward expects: see the round's page.",
        )
    if signs.entropy < LEAST_ENTROPY:
        return (
            f"the entropy fell to {signs.entropy:.2g} nats per token",
            "Raise --temperature, lower the learning rate, or start from an earlier checkpoint.",
        )
    return (
        "within each group all completions have the same reward",
        "Raise --num_generations, or choose prompts that the model solves some of the time.",
    )


def _teaches(group: Iterable[RolloutCompletion]) -> bool:
    """Return whether a step learns from any of them; without advantages it learns from all."""
    return any(each.learned and (each.advantages is None or np.any(each.advantages != 0)) for each in group)


def _part(found: Iterable[bool]) -> float:
    flags = list(found)
    return sum(flags) / len(flags) if flags else 0.0


def _entropy(completions: Iterable[RolloutCompletion]) -> float:
    """Return the mean over tokens; `-log p` of a sampled token has the entropy as its mean."""
    values = [-each.logps if each.entropies is None else each.entropies for each in completions if len(each.token_ids)]
    return float(np.concatenate(values).mean()) if values else 0.0


def _off_reference(completions: Iterable[RolloutCompletion]) -> float | None:
    apart = [
        np.abs(each.old_logps - each.ref_logps)
        for each in completions
        if each.old_logps is not None and each.ref_logps is not None and len(each.token_ids)
    ]
    return float(np.concatenate(apart).mean()) if apart else None
