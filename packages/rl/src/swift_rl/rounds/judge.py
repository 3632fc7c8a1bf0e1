"""From answers to advantages: rewards are asked on the main process, and all processes learn what it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from swift.contracts import PlanContext, RewardItem
from swift.errors import ConfigError, SwiftError
from swift.toolkit import heartbeat
from swift_rl import advantages
from swift_rl.options import GrpoOptions
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import check_columns, select_rewards
from swift_rl.rewards.verdicts import Verdict
from swift_rl.rounds.data import DrawnAnswer, Prompt
from swift_rl.rounds.files import FOLDER

T = TypeVar("T")


class Judge:
    """Scores answers, and says what each is worth within its group."""

    def __init__(self, context: PlanContext, options: GrpoOptions, columns: Sequence[str]) -> None:
        self._context = context
        self._options = options
        selected = select_rewards(options.reward_funcs, options)
        if not selected:
            raise ConfigError(
                "Nothing says which answers are good.",
                hint="Name rewards: --reward_funcs exact_match (swift plugins lists them), FILE.py:FUNCTION, or "
                "--reward_model MODEL",
            )
        check_columns(selected, columns)
        self.names = [each.name for each in selected]
        self._weights = [each.weight for each in selected]
        self._pool: RewardPool | None = None
        if context.topology.is_main:
            folder = context.folder / FOLDER
            self._pool = RewardPool(selected, options, context.say, folder=folder, heartbeat=heartbeat)

    def score(self, prompts: Sequence[Prompt], answers: Sequence[DrawnAnswer]) -> None:
        """Fill in the rewards of answers. Called on every process."""
        verdicts = on_main(self._context, lambda: self._verdicts(prompts, answers))
        for answer, verdict in zip(answers, verdicts, strict=True):
            answer.rewards = {name: each.value for name, each in verdict.items()}
            answer.remarks = {name: remark for name, each in verdict.items() if (remark := _remark(each))}
            answer.failed = [name for name, each in verdict.items() if each.failure and each.value is None]

    def _verdicts(self, prompts: Sequence[Prompt], answers: Sequence[DrawnAnswer]) -> list[dict[str, Verdict]]:
        assert self._pool is not None
        items = [
            RewardItem(
                messages=prompts[answer.prompt].messages,
                completion=answer.text,
                completion_ids=answer.token_ids.tolist(),
                finish_reason=answer.finish_reason,
                columns=prompts[answer.prompt].columns,
                place=prompts[answer.prompt].place,
            )
            for answer in answers
        ]
        return self._pool.score(items)

    def value(self, answers: Sequence[DrawnAnswer], kl: Sequence[np.ndarray] | None) -> list[float]:
        """Fill in advantages and summed rewards; return the spread of each group's rewards, group by group."""
        table = np.array([[_number(answer, name) for name in self.names] for answer in answers])
        groups = np.array([answer.prompt for answer in answers])
        lengths = np.array([len(answer.token_ids) for answer in answers])
        found = advantages.estimate(table, groups, lengths, self._options, kl, weights=self._weights)
        for index, answer in enumerate(answers):
            answer.advantages = np.asarray(found.tokens[index], dtype=np.float64)
            answer.reward = float(found.total[index]) if found.scored[index] else 0.0
            answer.why_not = self._why_not(answer)
        return [float(each) for each in found.spread]

    def _why_not(self, answer: DrawnAnswer) -> str:
        if answer.failed:
            return f"the reward {', '.join(answer.failed)} failed"
        if not answer.scored:
            return "no reward applies"
        if self._options.overlong_filter and answer.finish_reason == "length":
            return "the answer was cut off at max_completion_length"
        return ""

    def close(self) -> None:
        """End the processes of the rewards."""
        if self._pool is not None:
            self._pool.close()


def on_main(context: PlanContext, work: Callable[[], T]) -> T:
    """Return what the main process finds, or raise what it raises, on every process."""
    found: T | SwiftError | OSError | None = None
    if context.topology.is_main:
        try:
            found = work()
        except (SwiftError, OSError) as failure:
            found = failure
    found = context.comms.broadcast(found)
    if isinstance(found, SwiftError | OSError):
        raise found
    return found  # type: ignore[return-value]  # the main process's


def _number(answer: DrawnAnswer, name: str) -> float:
    """Return a reward, or nan: an answer of which any reward failed has none."""
    value = None if answer.failed else answer.rewards[name]
    return float("nan") if value is None else float(value)


def _remark(verdict: Verdict) -> str:
    return "\n".join(filter(None, (verdict.failure, verdict.output.rstrip())))
