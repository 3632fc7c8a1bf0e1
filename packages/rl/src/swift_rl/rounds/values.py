"""Values that the tokens of a round get before steps learn from them, which differ between objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from swift_rl import correction
from swift_rl.mismatch import mismatch
from swift_rl.options import OnlineOptions
from swift_rl.rounds.batching import indices_of_step
from swift_rl.rounds.logps import TokenLogps, sample_of, values_of_completions
from swift_rl.rounds.reference import RunReference
from swift_rl.rounds.rollouts import computes_alike
from swift_rl.rounds.scoring import RewardScorer

if TYPE_CHECKING:
    from swift.contracts import Objective, ScheduleContext
    from swift.data.batch import Batch
    from swift.data.samples import Encoded
    from swift_rl.rounds.data import Prompt, RolloutCompletion, Round
    from swift_rl.sync import ProbeResult

Options = TypeVar("Options", bound=OnlineOptions)


@dataclass(frozen=True)
class KeptCompletions:
    """The completions of a round that steps learn from, as samples for forward passes."""

    completions: list[RolloutCompletion]
    samples: list[Encoded]
    batches: list[list[int]]
    """Indices of the completions that each step of the round's first pass learns from."""

    @classmethod
    def of(cls, made: Round, context: ScheduleContext, options: OnlineOptions) -> KeptCompletions:
        """Return the completions whose group was not dropped."""
        kept = [completion for completion in made.completions if completion.prompt not in made.dropped]
        samples = []
        for completion in kept:
            before, ids, own = completion.layout(made.prompts[completion.prompt])
            samples.append(sample_of(0, before, ids, {}, own=own))
        steps = range(options.steps_per_pass)
        batches = [indices_of_step(context, options, made.number, len(kept), within) for within in steps]
        return cls(kept, samples, [each for each in batches if each])

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


class Valuer(ABC, Generic[Options]):
    """Computes the token values that an objective's loss reads. Every method is called on every process.

    An objective has a subclass: `RolloutSchedule(context, options, OwnValuer)`. `value` is called when completions are
    sampled and scored, then `fill_in` when the round is complete and the weights are still those at its beginning.
    Values are stored as attributes of the completions or in their `token_values`. These are written to disk with the
    round, and `sample` reads them, so that a run can resume in the middle of a round.
    """

    needs_rewards: ClassVar[bool] = True
    """Whether there is nothing to learn without a reward."""
    token_columns: ClassVar[tuple[str, ...]] = ()
    """Attributes and `token_values` of completions that samples get as `MicroBatch.token_values`, where known."""

    def __init__(self, context: ScheduleContext, options: Options, columns: Sequence[str]) -> None:
        self.context = context
        self.options = options
        named = bool(options.reward_funcs or options.reward_model or options.environment)
        needed = self.needs_rewards and not options.learns_without_rewards
        self.scorer = RewardScorer(context, options, columns) if needed or named else None
        self.reference = RunReference(context, options) if options.has_reference else None

    @property
    def names(self) -> list[str]:
        """Return the names of the rewards."""
        return [] if self.scorer is None else self.scorer.names

    def given(self, number: int, prompts: Sequence[Prompt]) -> Mapping[int, Sequence[RolloutCompletion]]:
        """Return known completions by index of the round's prompts; nothing is sampled for these prompts."""
        return {}

    def score(self, prompts: Sequence[Prompt], completions: Sequence[RolloutCompletion]) -> None:
        """Fill in the rewards of completions."""
        if self.scorer is not None:
            self.scorer.score(prompts, completions)

    @abstractmethod
    def value(self, completions: Sequence[RolloutCompletion]) -> list[float]:
        """Fill in summed rewards and values derived from them; return the spread of each group's rewards in order."""

    @abstractmethod
    def fill_in(self, kept: KeptCompletions) -> Mapping[str, float]:
        """Fill in values that need forward passes, and those derived from them; return figures of the round."""

    def fill(self, made: Round, step: int, probed: ProbeResult | None) -> None:
        """Complete a round with the model in training after `step` steps."""
        made.facts |= self.fill_in(KeptCompletions.of(made, self.context, self.options))
        truncated = self.options.top_p < 1 or self.options.top_k > 0
        made.facts |= mismatch(made, probe=probed, truncated=truncated, trainer_version=step)
        made.facts |= {**figures(made.completions, self.names), "dropped_groups": float(len(made.dropped))}

    def before_step(self, step: int) -> None:
        """Update models other than the policy after `step` steps, before a round is made."""
        if self.reference is not None:
            self.reference.before_step(step)

    def train_roles(self, step: int, batch: Batch) -> Mapping[str, float]:
        """Train models other than the policy, before the policy's step; return metrics to log."""
        return {}

    def learning_rate(self, step: int, planned: float) -> float:
        """Return the policy's learning rate at a step; `planned` is the schedule's."""
        return planned

    def begin(self, made: Round) -> None:
        """Update state from a round before its steps; a resumed run reads the round from its file."""

    def sample(self, prompt: Prompt, completion: RolloutCompletion) -> Encoded:
        """Return a row of a step."""
        values: dict[str, np.ndarray] = {"rollout_logps": completion.logps}
        for name in self.token_columns:
            value = completion.token_values.get(name, getattr(completion, name, None))
            if value is not None:
                values[name] = value
        weights = 1.0 if completion.learned else 0.0
        before, ids, own = completion.layout(prompt)
        return sample_of(prompt.number, before, ids, values, own=own, weights=weights)

    def state(self) -> Mapping[str, Any]:
        """Return JSON values for checkpoints, which `restore` receives."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""

    def close(self) -> None:
        """Release resources."""
        for each in (self.scorer, self.reference):
            if each is not None:
                each.close()

    # For subclasses

    def evaluate(self, kept: KeptCompletions, objective: Objective) -> list[Mapping[str, np.ndarray]]:
        """Return an objective's token values of the samples, by the model in training at the sampling temperature."""
        temperature, batches = self.options.temperature, kept.batches
        return values_of_completions(self.context, kept.samples, objective, temperature=temperature, batches=batches)

    def evaluate_policy(self, kept: KeptCompletions, *, entropy: bool = False) -> None:
        """Fill in the old log-probabilities, and on request entropies."""
        scored = self.evaluate(kept, TokenLogps(entropy=entropy))
        kept.fill("old_logps", kept.of_completions([values["logps"] for values in scored]))
        if entropy:
            kept.fill("entropies", kept.of_completions([values["entropies"] for values in scored]))

    def evaluate_reference(self, kept: KeptCompletions) -> None:
        """Fill in the log-probabilities of the reference, if there is one."""
        if self.reference is not None:
            kept.fill("ref_logps", kept.of_completions(self.reference.logps(kept)))

    @property
    def is_off_policy(self) -> bool:
        """Whether the engine computes differently from the model in training, or its weights are stale."""
        return not computes_alike(self.context, self.options) or self.options.rollout_staleness > 0

    @property
    def corrects(self) -> bool:
        """Whether tokens get importance weights of the trainer against the engine."""
        return correction.mode_of(self.options, off_policy=self.is_off_policy) != "off"

    def correct(self, kept: KeptCompletions) -> Mapping[str, float]:
        """Fill in importance weights from the old log-probabilities, where needed; return their figures."""
        if not self.corrects:
            return {}
        found = correction.weights(
            kept.all("old_logps"), kept.all("logps"), kept.masks, self.options, off_policy=self.is_off_policy
        )
        kept.fill("is_weights", [weights.astype(np.float32) for weights in found.weights])
        return found.facts


def figures(completions: Sequence[RolloutCompletion], names: Sequence[str]) -> dict[str, float]:
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
    for name in names:
        values = [value for completion in completions if (value := completion.rewards[name]) is not None]
        if values:
            facts[f"rewards/{name}"] = float(np.mean(values))
    return facts
