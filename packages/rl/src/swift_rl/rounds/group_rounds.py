"""Token values of GRPO and its family: advantages relative to the group, importance weights, references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift_rl import advantages, kl
from swift_rl.options import GrpoOptions
from swift_rl.rounds.scoring import CUT_OFF
from swift_rl.rounds.teacher import TokenTeacher
from swift_rl.rounds.values import KeptCompletions, Valuer

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift_rl.rounds.data import RolloutCompletion, Round
    from swift_rl.sync import ProbeResult


class GroupValuer(Valuer[GrpoOptions]):
    """Values of `grpo`."""

    token_columns = ("advantages", "old_logps", "ref_logps", "is_weights")

    def __init__(self, context: ScheduleContext, options: GrpoOptions, columns: Sequence[str]) -> None:
        super().__init__(context, options, columns)
        self._teacher = TokenTeacher(context, options) if options.has_teacher else None
        self._is_first = False

    def close(self) -> None:
        """End the rewards' processes, and close reference and teacher."""
        super().close()
        if self._teacher is not None:
            self._teacher.close()

    def value(self, completions: Sequence[RolloutCompletion]) -> list[float]:
        """Fill in advantages and summed rewards; return the spread of each group's rewards in order."""
        return self._value(completions, None)

    def fill(self, made: Round, step: int, probed: ProbeResult | None) -> None:
        """Complete a round; a run's first one compares the model with its reference (`swift_rl.health`)."""
        self._is_first = made.number == 0
        super().fill(made, step, probed)

    def fill_in(self, kept: KeptCompletions) -> Mapping[str, float]:
        """Fill in log-probabilities of policy and reference, and the values derived from them."""
        options = self.options
        by_entropy = options.top_entropy_quantile < 1
        if self._evaluates_policy:
            self.evaluate_policy(kept, entropy=by_entropy)
        self.evaluate_reference(kept)
        if options.has_reference and options.kl_in_reward:
            self._value(kept.completions, kl.of_completions(kept.all("old_logps"), kept.all("ref_logps"), options))
        facts = {} if self._teacher is None else self._add_teacher(kept, self._teacher)
        if by_entropy:
            high = advantages.entropy_mask(kept.all("entropies"), options.top_entropy_quantile)
            values = zip(high, kept.all("advantages"), strict=True)
            kept.fill("advantages", [np.where(learned, each, 0.0) for learned, each in values])
        return {**facts, **self.correct(kept)}

    def _add_teacher(self, kept: KeptCompletions, teacher: TokenTeacher) -> Mapping[str, float]:
        """Add the difference of the teacher's and the policy's log-probability of each token to its advantage."""
        logps = kept.of_completions(teacher.logps(kept.samples))
        apart = []
        for completion, each in zip(kept.completions, logps, strict=True):
            assert completion.old_logps is not None
            completion.token_values["teacher_logps"] = each.astype(np.float32)
            further = completion.old_logps.astype(np.float64) - each
            completion.advantages = completion.advantages - self.options.teacher_kl_coef * further
            apart += [further] if completion.learned else []
        return {"teacher_kl": float(np.concatenate(apart).mean())} if apart else {}

    def _value(self, completions: Sequence[RolloutCompletion], divergences: Sequence[np.ndarray] | None) -> list[float]:
        groups = np.array([completion.prompt for completion in completions])
        lengths = np.array([len(completion.token_ids) for completion in completions])
        if self.scorer is None:
            for completion, length in zip(completions, lengths, strict=True):
                completion.advantages = np.zeros(length)
                cut = self.options.overlong_filter and completion.finish_reason == "length"
                completion.why_not = CUT_OFF if cut else ""
            return [0.0] * len(set(groups))
        table, weights = self.scorer.table(completions), self.scorer.weights
        found = advantages.estimate(table, groups, lengths, self.options, divergences, weights=weights)
        for completion, tokens in zip(completions, found.tokens, strict=True):
            completion.advantages = np.asarray(tokens, dtype=np.float64)
        self.scorer.fill_totals(completions, found.total)
        return [float(each) for each in found.spread]

    @property
    def _evaluates_policy(self) -> bool:
        """Whether the policy is evaluated on the completions before it learns from them.

        If one step learns from each completion once, its own log-probabilities are the old ones. The first round of a
        run with a reference evaluates the policy anyway, to check that both are the same model.
        """
        first = self._is_first and self.reference is not None
        return first or self.options.evaluates_policy or self.corrects
