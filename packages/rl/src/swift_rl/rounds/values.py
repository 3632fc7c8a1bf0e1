"""The completions of a round that steps learn from, with the values of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from swift_rl import correction
from swift_rl.rounds.batching import indices_of_step
from swift_rl.rounds.logps import TokenLogps, sample_of, values_of_completions
from swift_rl.rounds.rollouts import computes_alike

if TYPE_CHECKING:
    from swift.contracts import ForwardResult, Objective, ScheduleContext
    from swift.data.batch import Batch
    from swift.data.samples import Encoded
    from swift_rl.options import OnlineOptions
    from swift_rl.rounds.data import RolloutCompletion, Round
    from swift_rl.rounds.scoring import RewardScorer


@dataclass(frozen=True)
class KeptCompletions:
    """The completions of a round that steps learn from, as samples for forward passes.

    Methods that evaluate are called on every process.
    """

    context: ScheduleContext
    options: OnlineOptions
    round: int
    completions: list[RolloutCompletion]
    samples: list[Encoded]
    batches: list[list[int]]
    """Indices of the completions that each step of the round's first pass learns from."""

    @classmethod
    def of(cls, made: Round, context: ScheduleContext, options: OnlineOptions) -> KeptCompletions:
        """Return the completions whose group was not dropped."""
        kept = made.kept
        samples = []
        for completion in kept:
            before, ids, own = completion.layout(made.prompts[completion.prompt])
            samples.append(sample_of(0, before, ids, {}, own=own))
        steps = range(options.steps_per_pass)
        batches = [indices_of_step(context, options, made.number, len(kept), within) for within in steps]
        return cls(context, options, made.number, kept, samples, [each for each in batches if each])

    def all(self, name: str) -> list[np.ndarray]:
        """Return an attribute of all completions."""
        return [getattr(completion, name) for completion in self.completions]

    @property
    def masks(self) -> list[np.ndarray]:
        """The tokens of all completions that are learned."""
        return [np.full(len(completion.token_ids), completion.learned) for completion in self.completions]

    def fill(self, name: str, values: Sequence[np.ndarray]) -> None:
        """Set an attribute of all completions."""
        for completion, value in zip(self.completions, values, strict=True):
            setattr(completion, name, value)

    def of_completions(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the part of the samples' values that belongs to tokens which the model wrote."""
        own = [sample.segments[0].weights > 0 for sample in self.samples]
        return [whole[mine] for whole, mine in zip(values, own, strict=True)]

    def evaluate(
        self,
        objective: Objective,
        *,
        temperature: float,
        forward: Callable[[Batch, Objective], ForwardResult] | None = None,
    ) -> dict[str, list[np.ndarray]]:
        """Return values of the tokens of all completions by name, by the model in training or by `forward`."""
        found = values_of_completions(
            self.context, self.samples, objective, temperature=temperature, forward=forward, batches=self.batches
        )
        return {name: self.of_completions([values[name] for values in found]) for name in found[0]}

    def evaluate_policy(self, *, entropy: bool = False) -> None:
        """Fill in the old log-probabilities, and on request entropies."""
        found = self.evaluate(TokenLogps(entropy=entropy), temperature=self.options.temperature)
        self.fill("old_logps", found["logps"])
        if entropy:
            self.fill("entropies", found["entropies"])

    @property
    def is_off_policy(self) -> bool:
        """Whether the engine computes differently from the model in training, or its weights are stale."""
        return not computes_alike(self.context, self.options) or self.options.rollout_staleness > 0

    @property
    def is_corrected(self) -> bool:
        """Whether tokens get importance weights of the trainer against the engine."""
        return correction.mode_of(self.options, off_policy=self.is_off_policy) != "off"

    def correct(self) -> Mapping[str, float]:
        """Fill in importance weights from the old log-probabilities, where needed; return their figures."""
        if not self.is_corrected:
            return {}
        found = correction.weights(
            self.all("old_logps"), self.all("logps"), self.masks, self.options, off_policy=self.is_off_policy
        )
        self.fill("is_weights", [weights.astype(np.float32) for weights in found.weights])
        return found.facts


def figures(completions: Sequence[RolloutCompletion], scorer: RewardScorer | None) -> dict[str, float]:
    """Return the logged figures of completions."""
    rewards = np.array([completion.reward for completion in completions if completion.scored])
    lengths = np.array([len(completion.token_ids) for completion in completions])
    facts = {
        "reward": float(rewards.mean()) if len(rewards) else 0.0,
        "reward_std": float(rewards.std()) if len(rewards) else 0.0,
        "completion_length": float(lengths.mean()),
        "truncated": float(np.mean([completion.finish_reason == "length" for completion in completions])),
    }
    turns = [completion.episode.turns for completion in completions if completion.episode is not None]
    facts |= {"turns": float(np.mean(turns))} if turns else {}
    for name in [] if scorer is None else scorer.names:
        values = [value for completion in completions if (value := completion.rewards[name]) is not None]
        if values:
            facts[f"rewards/{name}"] = float(np.mean(values))
    return facts
