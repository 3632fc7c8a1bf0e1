"""Values that the tokens of a round get before steps learn from them: the part that objectives differ in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from swift_rl import correction
from swift_rl.mismatch import gap
from swift_rl.options import OnlineOptions
from swift_rl.rounds.dealing import dealt
from swift_rl.rounds.draw import computes_alike
from swift_rl.rounds.judge import Judge
from swift_rl.rounds.logps import TokenLogps, sample_of, values_of_answers

if TYPE_CHECKING:
    from swift.contracts import Objective, ScheduleContext
    from swift.data.batch import Batch
    from swift.data.samples import Encoded
    from swift_rl.policy_options import CorrectionOptions
    from swift_rl.rounds.data import DrawnAnswer, Prompt, Round
    from swift_rl.sync import ProbeResult

Options = TypeVar("Options", bound=OnlineOptions)


@dataclass(frozen=True)
class TakenAnswers:
    """The answers of a round that steps learn from, as samples that models can be asked about."""

    answers: list[DrawnAnswer]
    samples: list[Encoded]
    batches: list[list[int]]
    """Which of them each step of the round's first pass learns from."""

    @classmethod
    def of(cls, made: Round, context: ScheduleContext, options: OnlineOptions) -> TakenAnswers:
        """Return those whose group was not dropped."""
        taken = [answer for answer in made.answers if answer.prompt not in made.dropped]
        samples = []
        for answer in taken:
            before, ids, own = answer.layout(made.prompts[answer.prompt])
            samples.append(sample_of(0, before, ids, {}, own=own))
        steps = range(options.steps_per_pass)
        batches = [dealt(context, options, made.number, len(taken), within) for within in steps]
        return cls(taken, samples, [each for each in batches if each])

    def all(self, name: str) -> list[np.ndarray]:
        """Return an attribute of all answers."""
        return [getattr(answer, name) for answer in self.answers]

    def of_answers(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return from values of the samples those of the answers' own tokens."""
        own = [sample.segments[0].weights > 0 for sample in self.samples]
        return [whole[mine] for whole, mine in zip(values, own, strict=True)]


class Valuer(ABC, Generic[Options]):
    """Gives tokens the numbers that an objective's loss reads. Every method is called on every process.

    An objective brings a subclass: `RolloutSchedule(context, options, OwnValuer)`. `value` comes first, when answers
    are drawn and scored, and `fill_in` when the round is complete and the weights are still those that it began with.
    Numbers go to attributes of the answers or into their `token_values`, from where rounds are written to disk and
    `sample` takes what the loss reads, so that no more than those is needed to resume in the middle of a round.
    """

    needs_rewards: ClassVar[bool] = True
    """Whether there is nothing to learn without a reward."""
    carried: ClassVar[tuple[str, ...]] = ()
    """What samples have of the answers' attributes and `token_values`, where it is known: `MicroBatch.token_values`."""

    def __init__(self, context: ScheduleContext, options: Options, columns: Sequence[str]) -> None:
        self.context = context
        self.options = options
        named = bool(options.reward_funcs or options.reward_model or options.environment)
        needed = self.needs_rewards and not options.learns_without_rewards
        self.judge = Judge(context, options, columns) if needed or named else None

    @property
    def names(self) -> list[str]:
        """Return the names of the rewards."""
        return [] if self.judge is None else self.judge.names

    def given(self, number: int, prompts: Sequence[Prompt]) -> Mapping[int, Sequence[DrawnAnswer]]:
        """Return for indices of a round's prompts the answers that are known: these prompts are not drawn for."""
        return {}

    def score(self, prompts: Sequence[Prompt], answers: Sequence[DrawnAnswer]) -> None:
        """Fill in the rewards of answers."""
        if self.judge is not None:
            self.judge.score(prompts, answers)

    @abstractmethod
    def value(self, answers: Sequence[DrawnAnswer]) -> list[float]:
        """Fill in summed rewards, and what follows from them; return the spread of each group's rewards in order."""

    @abstractmethod
    def fill_in(self, taken: TakenAnswers) -> Mapping[str, float]:
        """Fill in what models say of the answers, and what follows from it; return figures of the round."""

    def fill(self, made: Round, step: int, probed: ProbeResult | None) -> None:
        """Complete a round with the model in training as it is after so many steps."""
        made.facts |= self.fill_in(TakenAnswers.of(made, self.context, self.options))
        truncated = self.options.top_p < 1 or self.options.top_k > 0
        made.facts |= gap(made, probe=probed, truncated=truncated, trainer_version=step)
        made.facts |= {**figures(made.answers, self.names), "dropped_groups": float(len(made.dropped))}

    def before_step(self, step: int) -> None:
        """Change other models than the policy by what has been learned in so many steps; then rounds are made."""

    def train_roles(self, step: int, batch: Batch) -> Mapping[str, float]:
        """Make the steps of other models than the policy, before its own; return what is logged of them."""
        return {}

    def learning_rate(self, step: int, planned: float) -> float:
        """Return the policy's learning rate at a step, which the schedule has planned."""
        return planned

    def begin(self, made: Round) -> None:
        """Take up what a round tells for the following ones; its file may be from an earlier life of the run."""

    def sample(self, prompt: Prompt, answer: DrawnAnswer) -> Encoded:
        """Return a row of a step."""
        values: dict[str, np.ndarray] = {"rollout_logps": answer.logps}
        for name in self.carried:
            value = answer.token_values.get(name) if name in answer.token_values else getattr(answer, name, None)
            if value is not None:
                values[name] = value
        weights = 1.0 if answer.learned else 0.0
        before, ids, own = answer.layout(prompt)
        return sample_of(prompt.number, before, ids, values, own=own, weights=weights)

    def state(self) -> Mapping[str, Any]:
        """Return JSON values that a checkpoint keeps besides the round, as `restore` takes them."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was asked for."""

    def close(self) -> None:
        """Give back what is held."""
        if self.judge is not None:
            self.judge.close()

    # For subclasses

    def ask(self, taken: TakenAnswers, objective: Objective) -> list[Mapping[str, np.ndarray]]:
        """Return what the model in training says of the samples, at the temperature of the draws."""
        temperature, batches = self.options.temperature, taken.batches
        return values_of_answers(self.context, taken.samples, objective, temperature=temperature, batches=batches)

    def ask_policy(self, taken: TakenAnswers, *, entropy: bool = False) -> None:
        """Fill in the old log-probabilities, and entropies where they are asked for."""
        scored = self.ask(taken, TokenLogps(entropy=entropy))
        logps = taken.of_answers([values["logps"] for values in scored])
        for answer, each in zip(taken.answers, logps, strict=True):
            answer.old_logps = each
        if entropy:
            entropies = taken.of_answers([values["entropies"] for values in scored])
            for answer, each in zip(taken.answers, entropies, strict=True):
                answer.entropies = each

    @property
    def is_third_party(self) -> bool:
        """Whether answers are drawn by an engine that computes otherwise than the model in training, or lags behind."""
        return not computes_alike(self.context, self.options) or self.options.rollout_lag > 0

    def corrects(self, options: CorrectionOptions) -> bool:
        """Return whether tokens are weighed by what the trainer says of them against what the engine said."""
        return correction.mode_of(options, third_party=self.is_third_party) != "off"

    def correct(self, taken: TakenAnswers, options: CorrectionOptions) -> Mapping[str, float]:
        """Fill in these weights, from the old log-probabilities; return figures of them."""
        masks = [np.full(len(answer.token_ids), answer.learned) for answer in taken.answers]
        found = correction.weights(
            taken.all("old_logps"), taken.all("logps"), masks, options, third_party=self.is_third_party
        )
        for answer, weights in zip(taken.answers, found.weights, strict=True):
            answer.is_weights = weights.astype(np.float32)
        return found.facts


def figures(answers: Sequence[DrawnAnswer], names: Sequence[str]) -> dict[str, float]:
    """Return the figures of answers that are logged."""
    rewards = np.array([answer.reward for answer in answers if answer.scored])
    lengths = np.array([len(answer.token_ids) for answer in answers])
    facts = {
        "reward": float(rewards.mean()) if len(rewards) else 0.0,
        "reward_std": float(rewards.std()) if len(rewards) else 0.0,
        "completion_length": float(lengths.mean()),
        "truncated": float(np.mean([answer.finish_reason == "length" for answer in answers])),
    }
    turns = [answer.episode.turns for answer in answers if answer.episode is not None]
    facts |= {"turns": float(np.mean(turns))} if turns else {}
    for name in names:
        values = [value for answer in answers if (value := answer.rewards[name]) is not None]
        if values:
            facts[f"rewards/{name}"] = float(np.mean(values))
    return facts
