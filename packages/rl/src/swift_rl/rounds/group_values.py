"""Token values of GRPO and its family: advantages relative to the group, importance weights, references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from swift_rl import advantages, kl
from swift_rl.options import GrpoOptions
from swift_rl.rounds.reference import RunReference
from swift_rl.rounds.scoring import CUT_OFF
from swift_rl.rounds.teacher import RoleTeacher, TokenTeacher, open_teacher
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
        self._reference = RunReference(context, options.temperature) if options.beta > 0 else None
        self._teacher = open_teacher(context, options) if options.has_teacher else None
        self._is_first = False

    def close(self) -> None:
        """End the rewards' processes, and close reference and teacher."""
        super().close()
        for model in (self._reference, self._teacher):
            if model is not None:
                model.close()

    def before_step(self, step: int) -> None:
        """Let the reference follow the policy, with `sync_ref_model`."""
        if self._reference is not None:
            self._reference.before_step(step, self.options)

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
        if self._reference is not None:
            logps = self._reference.logps(kept, lambda objective: self.evaluate(kept, objective))
            for completion, each in zip(kept.completions, kept.of_completions(logps), strict=True):
                completion.ref_logps = each
        if options.beta > 0 and options.kl_in_reward:
            self._value(kept.completions, kl.of_completions(kept.all("old_logps"), kept.all("ref_logps"), options))
        facts = {} if self._teacher is None else self._add_teacher(kept, self._teacher)
        if by_entropy:
            high = advantages.entropy_mask(kept.all("entropies"), options.top_entropy_quantile)
            for completion, values, high_entropy in zip(kept.completions, kept.all("advantages"), high, strict=True):
                completion.advantages = np.where(high_entropy, values, 0.0)
        return {**facts, **(self.correct(kept, options) if self.corrects(options) else {})}

    def _add_teacher(self, kept: KeptCompletions, teacher: TokenTeacher | RoleTeacher) -> Mapping[str, float]:
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
        first = self._is_first and self._reference is not None
        return first or self.options.evaluates_policy or self.corrects(self.options)
