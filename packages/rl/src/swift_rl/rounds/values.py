"""Values of a round's tokens: of the policy, its reference, and against the engine that drew them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift_rl import correction, kl
from swift_rl.advantages import entropy_mask
from swift_rl.gap import gap
from swift_rl.rounds.draw import computes_alike
from swift_rl.rounds.logps import TokenLogps, sample_of, values_of_answers
from swift_rl.rounds.reference import RunReference

if TYPE_CHECKING:
    from swift.contracts import PlanContext
    from swift_rl.options import GrpoOptions
    from swift_rl.rounds.data import DrawnAnswer, Round
    from swift_rl.rounds.judge import Judge
    from swift_rl.sync import ProbeResult


class Valuer:
    """Fills in what is known of a round's tokens before steps learn from them."""

    def __init__(self, context: PlanContext, options: GrpoOptions, judge: Judge) -> None:
        self._context = context
        self._options = options
        self._judge = judge
        self._reference = RunReference(context, options) if options.beta > 0 else None
        self._steps_per_round = options.steps_per_generation * options.num_iterations

    def close(self) -> None:
        """Give the reference back."""
        if self._reference is not None:
            self._reference.close()

    def fill(self, made: Round, step: int, probed: ProbeResult | None) -> None:
        """Fill in what the model in training, after so many steps, and its reference say, and what follows from it."""
        options = self._options
        taken = [answer for answer in made.answers if answer.prompt not in made.dropped]
        samples = [sample_of(0, made.prompts[each.prompt].token_ids, each.token_ids, {}) for each in taken]

        def ask(objective: TokenLogps) -> list[Mapping[str, np.ndarray]]:
            return values_of_answers(self._context, samples, objective, temperature=options.temperature)

        if self._asks_policy:
            by_entropy = options.top_entropy_quantile < 1
            for answer, values in zip(taken, ask(TokenLogps(entropy=by_entropy)), strict=True):
                answer.old_logps = _of_answer(values["logps"], answer)
                answer.entropies = _of_answer(values["entropies"], answer) if by_entropy else None
        if self._reference is not None:
            for answer, logps in zip(taken, self._reference.logps(samples, ask), strict=True):
                answer.ref_logps = _of_answer(logps, answer)
        if options.beta > 0 and options.kl_in_reward:
            self._judge.value(taken, kl.of_answers(_all(taken, "old_logps"), _all(taken, "ref_logps"), options))
        if options.top_entropy_quantile < 1:
            high = entropy_mask(_all(taken, "entropies"), options.top_entropy_quantile)
            for answer, advantages, kept in zip(taken, _all(taken, "advantages"), high, strict=True):
                answer.advantages = np.where(kept, advantages, 0.0)
        if self._corrects:
            made.facts |= self._correct(taken)
        made.facts |= gap(
            made,
            probe=probed,
            truncated=options.top_p < 1 or options.top_k > 0,
            trainer_version=step,
        )
        made.facts |= {**figures(made.answers, self._judge.names), "dropped_groups": float(len(made.dropped))}

    def _correct(self, taken: Sequence[DrawnAnswer]) -> dict[str, float]:
        """Weigh the tokens by what the trainer says of them against what the engine said."""
        masks = [np.full(len(answer.token_ids), answer.learned) for answer in taken]
        drawn = [answer.logps for answer in taken]
        found = correction.weights(_all(taken, "old_logps"), drawn, masks, self._options, foreign=self._is_foreign)
        for answer, weights in zip(taken, found.weights, strict=True):
            answer.is_weights = weights.astype(np.float32)
        return found.facts

    @property
    def _is_foreign(self) -> bool:
        """Whether answers are drawn by an engine that computes otherwise than the model in training, or lags behind."""
        exact = computes_alike(self._context, self._options)
        return not exact or self._options.rollout_lag > 0

    @property
    def _corrects(self) -> bool:
        return correction.mode_of(self._options, foreign=self._is_foreign) != "off"

    @property
    def _asks_policy(self) -> bool:
        """Whether the model in training is asked about the answers before it learns from them.

        Where one step learns from each answer once, its own log-probabilities are the old ones.
        """
        options = self._options
        in_reward = options.beta > 0 and options.kl_in_reward
        return self._steps_per_round > 1 or self._corrects or in_reward or options.top_entropy_quantile < 1


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
    for name in names:
        values = [value for answer in answers if (value := answer.rewards[name]) is not None]
        if values:
            facts[f"rewards/{name}"] = float(np.mean(values))
    return facts


def _of_answer(values: np.ndarray, answer: DrawnAnswer) -> np.ndarray:
    """Return the values of the answer's own tokens, which are the last ones."""
    return values[len(values) - len(answer.token_ids) :]


def _all(answers: Sequence[DrawnAnswer], name: str) -> list[np.ndarray]:
    return [getattr(answer, name) for answer in answers]
