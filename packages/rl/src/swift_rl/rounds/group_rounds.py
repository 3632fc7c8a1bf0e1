"""Token values of GRPO and its family: advantages relative to the group, importance weights, references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift_rl import advantages, kl
from swift_rl.options import GrpoOptions
from swift_rl.rounds.schedule import RolloutSchedule
from swift_rl.rounds.scoring import CUT_OFF
from swift_rl.rounds.teacher import TokenTeacher

if TYPE_CHECKING:
    from swift.contracts import ScheduleContext
    from swift_rl.rounds.data import RolloutCompletion
    from swift_rl.rounds.values import KeptCompletions


class GroupRounds(RolloutSchedule[GrpoOptions]):
    """Rounds of `grpo`."""

    token_columns = ("advantages", "old_logps", "ref_logps", "is_weights")

    def __init__(self, context: ScheduleContext, options: GrpoOptions) -> None:
        super().__init__(context, options)
        self._teacher = TokenTeacher(context, options) if options.has_teacher else None

    def close(self) -> None:
        """Close the teacher too."""
        super().close()
        if self._teacher is not None:
            self._teacher.close()

    def value(
        self, completions: Sequence[RolloutCompletion], divergences: Sequence[np.ndarray] | None = None
    ) -> list[float]:
        """Fill in advantages and summed rewards; return the spread of each group's rewards in order."""
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

    def fill_in(self, kept: KeptCompletions) -> Mapping[str, float]:
        """Fill in log-probabilities of policy and reference, and the values derived from them."""
        options = self.options
        by_entropy = options.top_entropy_quantile < 1
        # Where one step learns from each completion once, its own log-probabilities are the old ones. The first round
        # of a run with a reference evaluates the policy anyway: `swift_rl.health` checks that both are the same model.
        first = kept.round == 0 and options.has_reference
        if first or options.evaluates_policy or kept.is_corrected:
            kept.evaluate_policy(entropy=by_entropy)
        self.evaluate_reference(kept)
        if options.has_reference and options.kl_in_reward:
            self.value(kept.completions, kl.of_completions(kept.all("old_logps"), kept.all("ref_logps"), options))
        facts = {} if self._teacher is None else self._add_teacher(kept, self._teacher)
        if by_entropy:
            high = advantages.entropy_mask(kept.all("entropies"), options.top_entropy_quantile)
            values = zip(high, kept.all("advantages"), strict=True)
            kept.fill("advantages", [np.where(learned, each, 0.0) for learned, each in values])
        return {**facts, **kept.correct()}

    def _add_teacher(self, kept: KeptCompletions, teacher: TokenTeacher) -> Mapping[str, float]:
        """Add the difference of the teacher's and the policy's log-probability of each token to its advantage."""
        logps = kept.of_completions(teacher.logps(kept.samples))
        kept.fill("teacher_logps", [each.astype(np.float32) for each in logps])
        apart = []
        for completion, each in zip(kept.completions, logps, strict=True):
            assert completion.old_logps is not None
            further = completion.old_logps.astype(np.float64) - each
            completion.advantages = completion.advantages - self.options.teacher_kl_coef * further
            apart += [further] if completion.learned else []
        return {"teacher_kl": float(np.concatenate(apart).mean())} if apart else {}
