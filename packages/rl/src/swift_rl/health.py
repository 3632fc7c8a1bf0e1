"""Whether anything can be learned: what each round shows, and the line that ends a run which only costs time.

A round teaches something where the answers of a group have different advantages. Rounds that teach nothing are counted;
a run whose reward has risen since its first round is not ended by them: it has learned what its prompts can teach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from swift.errors import TrainingError

if TYPE_CHECKING:
    from swift_rl.rounds.data import DrawnAnswer, Round

MOST = 0.9
"""Part of the answers that makes a sign of a round what is wrong with it."""
LEAST_ENTROPY = 0.01
"""Nats per token below which the answers to a prompt are practically one."""
REFERENCE_GAP = 1e-3
"""Nats per token by which a reference may differ from the model that it is a copy of: rounding, and nothing else."""


class NothingToLearn(TrainingError):
    """A run of online learning that can make no progress as it is set up."""


@dataclass(frozen=True)
class Signs:
    """Figures of a round by which it is judged."""

    reward: float
    """Mean over the answers that have one; nan where none has."""
    taught: float
    """Part of the groups whose answers have different advantages."""
    truncated: float
    """Part of the answers that were cut off at `max_completion_length`."""
    unscorable: float
    """Part of the answers that have rewards of which none could be computed."""
    rewarded: bool
    """Whether the answers have rewards at all: a teacher may be all that is learned from."""
    alike: float
    """Part of the groups whose answers are all the same text."""
    constant: bool
    """Whether all answers of the round have the same reward."""
    entropy: float
    """Nats per token: measured where the round has entropies, else the mean of -log p of what was drawn."""
    off_reference: float | None
    """Mean |log policy − log reference| per token, where the round has both."""


def signs_of(made: Round) -> Signs:
    """Return what a round shows."""
    answers = made.answers
    rewards = np.array([each.reward for each in answers if _scored(each)])
    by_prompt = {prompt: made.group(prompt) for prompt in range(len(made.prompts))}
    groups = [group for group in by_prompt.values() if group]
    return Signs(
        reward=float(rewards.mean()) if len(rewards) else float("nan"),
        taught=_part(prompt not in made.dropped and _teaches(group) for prompt, group in by_prompt.items()),
        truncated=_part(each.finish_reason == "length" for each in answers),
        unscorable=_part(bool(each.rewards) and not _scored(each) for each in answers),
        rewarded=any(each.rewards for each in answers),
        alike=_part(len(group) > 1 and len({each.text for each in group}) == 1 for group in groups),
        constant=len(rewards) > 1 and bool(np.ptp(rewards) == 0),
        entropy=_entropy(answers),
        off_reference=_off_reference(answers),
    )


class Health:
    """Look at every round; say once what is odd, and raise when too many rounds in a row have taught nothing."""

    def __init__(self, max_idle_rounds: int, say: Callable[[str], None]) -> None:
        self._most = max_idle_rounds
        self._say = say
        self._idle = 0
        self._first: float | None = None
        self._reported: set[str] = set()

    def look(self, made: Round) -> Signs:
        """Take a round whose advantages are known; the same on every process."""
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
            what, advice = f"every answer got the reward {signs.reward:g}", "There may be no more to learn."
        if what not in self._reported:
            self._reported.add(what)
            self._say(f"Round {made.number + 1} teaches nothing: {what}. {advice}")
        return signs

    def _compare_with_reference(self, made: Round, signs: Signs) -> None:
        """Refuse a reference that is not the model that the run begins with."""
        if made.number == 0 and signs.off_reference is not None and signs.off_reference > REFERENCE_GAP:
            raise NothingToLearn(
                f"The reference differs from the model before the first step: by {signs.off_reference:.2g} nats per "
                "token, which ought to be 0.",
                hint="Train from the weights that the reference has, with --tuner.dropout 0; or leave --beta out.",
            )


def cause_of(signs: Signs) -> tuple[str, str]:
    """Return why a round teaches nothing, and what to change."""
    if signs.unscorable >= MOST:
        return (
            "no reward could be computed",
            "Read why in the round's page, and repeat one answer with swift rewards test.",
        )
    if not signs.rewarded:
        return (
            "the teacher says of every token what the policy says",
            "Name a --teacher_model that differs from the model in training.",
        )
    if signs.truncated >= MOST:
        return (
            f"{signs.truncated:.0%} of the answers were cut off at max_completion_length",
            "Type a larger --max_completion_length, or start from a model that ends its answers.",
        )
    if signs.alike >= MOST:
        return (
            f"the answers to a prompt are all the same (entropy {signs.entropy:.2g} nats per token)",
            "Type a larger --temperature, a smaller learning rate, or start from an earlier checkpoint.",
        )
    if signs.constant:
        return (
            f"every answer got the reward {signs.reward:g}",
            "See in the round's page what the reward expects: prompts may be too hard, or no answer has its form.",
        )
    if signs.entropy < LEAST_ENTROPY:
        return (
            f"the entropy is down to {signs.entropy:.2g} nats per token",
            "Type a larger --temperature, a smaller learning rate, or start from an earlier checkpoint.",
        )
    return (
        "within each group all answers got the same reward",
        "Type a larger --num_generations, or take prompts that the model answers right now and then.",
    )


def _scored(answer: DrawnAnswer) -> bool:
    return answer.scored


def _teaches(group: Iterable[DrawnAnswer]) -> bool:
    """Return whether a step learns from any of them; where objectives have no advantages, all are learned from."""
    return any(each.learned and (each.advantages is None or np.any(each.advantages != 0)) for each in group)


def _part(found: Iterable[bool]) -> float:
    flags = list(found)
    return sum(flags) / len(flags) if flags else 0.0


def _entropy(answers: Iterable[DrawnAnswer]) -> float:
    """Return the mean over tokens; `-log p` of a drawn token has the entropy as its mean."""
    values = [-each.logps if each.entropies is None else each.entropies for each in answers if len(each.token_ids)]
    return float(np.concatenate(values).mean()) if values else 0.0


def _off_reference(answers: Iterable[DrawnAnswer]) -> float | None:
    apart = [
        np.abs(each.old_logps - each.ref_logps)
        for each in answers
        if each.old_logps is not None and each.ref_logps is not None and len(each.token_ids)
    ]
    return float(np.concatenate(apart).mean()) if apart else None
