"""Values of tokens for GRPO and its family: advantages against the group, and what corrects and bounds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift_rl import advantages, kl
from swift_rl.options import GrpoOptions
from swift_rl.rounds.judge import CUT_OFF
from swift_rl.rounds.reference import RunReference
from swift_rl.rounds.teacher import RoleTeacher, TokenTeacher, open_teacher
from swift_rl.rounds.values import TakenAnswers, Valuer

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift_rl.rounds.data import DrawnAnswer, Round
    from swift_rl.sync import ProbeResult


class GroupValuer(Valuer[GrpoOptions]):
    """Values of `grpo`."""

    carried = ("advantages", "old_logps", "ref_logps", "is_weights")

    def __init__(self, context: ScheduleContext, options: GrpoOptions, columns: Sequence[str]) -> None:
        super().__init__(context, options, columns)
        self._reference = RunReference(context, options.temperature) if options.beta > 0 else None
        self._teacher = open_teacher(context, options) if options.has_teacher else None
        self._is_first = False

    def close(self) -> None:
        """End the rewards' processes, and give the reference back."""
        super().close()
        for model in (self._reference, self._teacher):
            if model is not None:
                model.close()

    def before_step(self, step: int) -> None:
        """Let the reference follow the policy where that is asked for."""
        if self._reference is not None:
            self._reference.before_step(step, self.options)

    def value(self, answers: Sequence[DrawnAnswer]) -> list[float]:
        """Fill in advantages and summed rewards; return the spread of each group's rewards in order."""
        return self._value(answers, None)

    def fill(self, made: Round, step: int, probed: ProbeResult | None) -> None:
        """Complete a round; in a run's first one the model is compared with its reference (`swift_rl.health`)."""
        self._is_first = made.number == 0
        super().fill(made, step, probed)

    def fill_in(self, taken: TakenAnswers) -> Mapping[str, float]:
        """Fill in what the model in training and its reference say, and what follows from it."""
        options = self.options
        by_entropy = options.top_entropy_quantile < 1
        if self._asks_policy:
            self.ask_policy(taken, entropy=by_entropy)
        if self._reference is not None:
            logps = self._reference.logps(taken, lambda objective: self.ask(taken, objective))
            for answer, each in zip(taken.answers, taken.of_answers(logps), strict=True):
                answer.ref_logps = each
        if options.beta > 0 and options.kl_in_reward:
            self._value(taken.answers, kl.of_answers(taken.all("old_logps"), taken.all("ref_logps"), options))
        told = {} if self._teacher is None else self._taught(taken, self._teacher)
        if by_entropy:
            high = advantages.entropy_mask(taken.all("entropies"), options.top_entropy_quantile)
            for answer, values, kept in zip(taken.answers, taken.all("advantages"), high, strict=True):
                answer.advantages = np.where(kept, values, 0.0)
        return {**told, **(self.correct(taken, options) if self.corrects(options) else {})}

    def _taught(self, taken: TakenAnswers, teacher: TokenTeacher | RoleTeacher) -> Mapping[str, float]:
        """Add to the advantages what a teacher says of each token against what the policy says, nat for nat."""
        logps = taken.of_answers(teacher.logps(taken.samples))
        apart = []
        for answer, each in zip(taken.answers, logps, strict=True):
            assert answer.old_logps is not None
            answer.token_values["teacher_logps"] = each.astype(np.float32)
            further = answer.old_logps.astype(np.float64) - each
            answer.advantages = answer.advantages - self.options.teacher_kl_coef * further
            apart += [further] if answer.learned else []
        return {"teacher_kl": float(np.concatenate(apart).mean())} if apart else {}

    def _value(self, answers: Sequence[DrawnAnswer], divergences: Sequence[np.ndarray] | None) -> list[float]:
        groups = np.array([answer.prompt for answer in answers])
        lengths = np.array([len(answer.token_ids) for answer in answers])
        if self.judge is None:
            for answer, length in zip(answers, lengths, strict=True):
                answer.advantages = np.zeros(length)
                cut = self.options.overlong_filter and answer.finish_reason == "length"
                answer.why_not = CUT_OFF if cut else ""
            return [0.0] * len(set(groups))
        table, weights = self.judge.table(answers), self.judge.weights
        found = advantages.estimate(table, groups, lengths, self.options, divergences, weights=weights)
        for answer, tokens in zip(answers, found.tokens, strict=True):
            answer.advantages = np.asarray(tokens, dtype=np.float64)
        self.judge.summed(answers, found.total)
        return [float(each) for each in found.spread]

    @property
    def _asks_policy(self) -> bool:
        """Whether the model in training is asked about the answers before it learns from them.

        Where one step learns from each answer once, its own log-probabilities are the old ones. The first round of a
        run with a reference asks all the same, to see that both are the same model.
        """
        first = self._is_first and self._reference is not None
        return first or self.options.asks_policy or self.corrects(self.options)
