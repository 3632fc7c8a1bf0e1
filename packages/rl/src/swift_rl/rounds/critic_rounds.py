"""Token values of PPO: advantages relative to the critic, and the critic's returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from swift_rl import gae, kl
from swift_rl.advantages import GroupStatistics, totals
from swift_rl.critic import CRITIC, TokenValues, ValueLoss
from swift_rl.options import PpoOptions
from swift_rl.rounds.schedule import RolloutSchedule

if TYPE_CHECKING:
    from swift.contracts import OpenRole, ScheduleContext
    from swift.data.batch import Batch
    from swift_rl.rounds.data import RolloutCompletion, Round
    from swift_rl.rounds.values import KeptCompletions


class CriticRounds(RolloutSchedule[PpoOptions]):
    """Rounds of `ppo`; its critic is the role of that name."""

    token_columns = ("advantages", "old_logps", "is_weights", "returns", "old_values")

    def __init__(self, context: ScheduleContext, options: PpoOptions) -> None:
        super().__init__(context, options)
        self._kl_coef = options.kl_coef

    def value(self, completions: Sequence[RolloutCompletion]) -> list[float]:
        """Fill in summed rewards; return the spread of each group's rewards in order."""
        assert self.scorer is not None
        scored, total = totals(self.scorer.table(completions), self.scorer.weights)
        self.scorer.fill_totals(completions, total)
        groups = GroupStatistics(np.array([completion.prompt for completion in completions]), scored)
        return [float(each) for each in groups.spread(total)]

    def fill_in(self, kept: KeptCompletions) -> Mapping[str, float]:
        """Fill in log-probabilities, critic values, and the advantages and returns derived from them."""
        options = self.options
        kept.evaluate_policy()
        self.evaluate_reference(kept)
        divergences = None
        if options.has_reference:
            divergences = kl.of_completions(kept.all("old_logps"), kept.all("ref_logps"), options)
        values = self._values(kept)
        masks = kept.masks
        found = gae.estimate(self._scores(kept), values, divergences, masks, options, kl_coef=self._kl_coef)
        kept.fill("advantages", found.advantages)
        kept.fill("returns", found.returns)
        kept.fill("old_values", values)
        return {
            **({} if divergences is None else {"kl": _mean(divergences, masks), "kl_coef": self._kl_coef}),
            "explained_variance": gae.explained_variance(found.returns, values, masks),
            "value": _mean(values, masks),
            "return": _mean(found.returns, masks),
            **kept.correct(),
        }

    def begin(self, made: Round) -> None:
        """Adapt the coefficient of the KL divergence for the next round to the divergence of this one."""
        if {"kl", "kl_coef"} <= made.facts.keys():
            used, apart = made.facts["kl_coef"], made.facts["kl"]
            self._kl_coef = gae.adapted(used, apart, len(made.completions), self.options)

    def values_state(self) -> Mapping[str, Any]:
        """Return the coefficient of the next round."""
        return {"kl_coef": self._kl_coef}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the coefficient too."""
        super().restore(state)
        if self.options.kl_target is not None:
            self._kl_coef = float(state.get("values", {}).get("kl_coef", self._kl_coef))

    def learning_rate(self, step: int, planned: float) -> float:
        """Return 0 during the critic's warm-up."""
        return 0.0 if step < self.options.critic_warmup else planned

    def train_roles(self, step: int, batch: Batch) -> Mapping[str, float]:
        """Train the critic on the completions of a step, unless it shares the policy's layers."""
        if self.options.critic == "shared":
            return {}
        result = self._critic.train_step(batch, ValueLoss(self.options))
        metrics = {"grad_norm": result.grad_norm, "learning_rate": result.learning_rate, **result.metrics}
        return {f"critic/{name}": value for name, value in metrics.items()}

    @property
    def _critic(self) -> OpenRole:
        return self._context.role(CRITIC)

    def _values(self, kept: KeptCompletions) -> list[np.ndarray]:
        forward = None if self.options.critic == "shared" else self._critic.forward
        return kept.evaluate(TokenValues(self.options), temperature=1.0, forward=forward)["values"]

    def _scores(self, kept: KeptCompletions) -> np.ndarray:
        """Return the rewards of completions, less the penalty for those that did not end."""
        penalty = self.options.missing_eos_penalty or 0.0
        return np.array([each.reward - penalty * (each.finish_reason == "length") for each in kept.completions])


def _mean(values: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> float:
    every = np.concatenate([each[mask] for each, mask in zip(values, masks, strict=True)])
    return float(every.mean()) if len(every) else 0.0
