"""The numbers that PPO gives to tokens: advantages against the critic, and what the critic is to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from swift_rl import gae, kl
from swift_rl.advantages import GroupStatistics, totals
from swift_rl.critic import CRITIC, TokenValues, ValueLoss
from swift_rl.ppo_options import PpoOptions
from swift_rl.rounds.logps import values_of_answers
from swift_rl.rounds.reference import RunReference
from swift_rl.rounds.values import TakenAnswers, Valuer

if TYPE_CHECKING:
    from swift.contracts import OpenRole, ScheduleContext
    from swift.data.batch import Batch
    from swift_rl.rounds.data import DrawnAnswer, Round


class CriticValuer(Valuer[PpoOptions]):
    """Values of `ppo`; its critic is the role of that name."""

    carried = ("advantages", "old_logps", "is_weights", "returns", "old_values")

    def __init__(self, context: ScheduleContext, options: PpoOptions, columns: Sequence[str]) -> None:
        super().__init__(context, options, columns)
        self._reference = RunReference(context, options.temperature) if options.kl_coef > 0 else None
        self._kl_coef = options.kl_coef

    def close(self) -> None:
        """End the rewards' processes, and give the reference back."""
        super().close()
        if self._reference is not None:
            self._reference.close()

    def before_step(self, step: int) -> None:
        """Let the reference follow the policy where that is asked for."""
        if self._reference is not None:
            self._reference.before_step(step, self.options)

    def value(self, answers: Sequence[DrawnAnswer]) -> list[float]:
        """Fill in summed rewards; return the spread of each group's rewards in order."""
        assert self.judge is not None
        scored, total = totals(self.judge.table(answers), self.judge.weights)
        self.judge.summed(answers, total)
        groups = GroupStatistics(np.array([answer.prompt for answer in answers]), scored)
        return [float(each) for each in groups.spread(total)]

    def fill_in(self, taken: TakenAnswers) -> Mapping[str, float]:
        """Fill in what policy, reference and critic say, and the advantages and returns that follow."""
        options = self.options
        self.ask_policy(taken)
        divergences = self._divergences(taken)
        values = self._values(taken)
        masks = [np.full(len(answer.token_ids), answer.learned) for answer in taken.answers]
        found = gae.estimate(self._scores(taken), values, divergences, masks, options, kl_coef=self._kl_coef)
        for answer, advantages, returns, value in zip(
            taken.answers, found.advantages, found.returns, values, strict=True
        ):
            answer.advantages = advantages
            answer.token_values |= {"returns": returns, "old_values": value}
        return {
            **({} if divergences is None else {"kl": _mean(divergences, masks), "kl_coef": self._kl_coef}),
            "explained_variance": gae.explained_variance(found.returns, values, masks),
            "value": _mean(values, masks),
            "return": _mean(found.returns, masks),
            **(self.correct(taken, options) if self.corrects(options) else {}),
        }

    def begin(self, made: Round) -> None:
        """Adapt the coefficient of the KL divergence for the next round to what it was in this one."""
        if {"kl", "kl_coef"} <= made.facts.keys():
            used, apart = made.facts["kl_coef"], made.facts["kl"]
            self._kl_coef = gae.adapted(used, apart, len(made.answers), self.options)

    def state(self) -> Mapping[str, Any]:
        """Return the coefficient of the next round."""
        return {"kl_coef": self._kl_coef}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the coefficient."""
        if self.options.kl_target is not None:
            self._kl_coef = float(state.get("kl_coef", self._kl_coef))

    def learning_rate(self, step: int, planned: float) -> float:
        """Return 0 while only the critic learns."""
        return 0.0 if step < self.options.critic_warmup else planned

    def train_roles(self, step: int, batch: Batch) -> Mapping[str, float]:
        """Let the critic learn from the answers of a step, where it does not learn in the policy's."""
        if self.options.critic == "shared":
            return {}
        result = self._critic.train_step(batch, ValueLoss(self.options))
        told = {"grad_norm": result.grad_norm, "learning_rate": result.learning_rate, **result.metrics}
        return {f"critic/{name}": value for name, value in told.items()}

    @property
    def _critic(self) -> OpenRole:
        return self.context.role(CRITIC)

    def _values(self, taken: TakenAnswers) -> list[np.ndarray]:
        forward = None if self.options.critic == "shared" else self._critic.forward
        asked = TokenValues(self.options)
        values = values_of_answers(
            self.context, taken.samples, asked, temperature=1.0, forward=forward, batches=taken.batches
        )
        return taken.of_answers([each["values"] for each in values])

    def _divergences(self, taken: TakenAnswers) -> list[np.ndarray] | None:
        if self._reference is None:
            return None
        logps = self._reference.logps(taken, lambda objective: self.ask(taken, objective))
        for answer, each in zip(taken.answers, taken.of_answers(logps), strict=True):
            answer.ref_logps = each
        return kl.of_answers(taken.all("old_logps"), taken.all("ref_logps"), self.options)

    def _scores(self, taken: TakenAnswers) -> np.ndarray:
        """Return the rewards of whole answers, less for those that did not come to an end."""
        penalty = self.options.missing_eos_penalty or 0.0
        return np.array([each.reward - penalty * (each.finish_reason == "length") for each in taken.answers])


def _mean(values: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> float:
    every = np.concatenate([each[mask] for each, mask in zip(values, masks, strict=True)])
    return float(every.mean()) if len(every) else 0.0
