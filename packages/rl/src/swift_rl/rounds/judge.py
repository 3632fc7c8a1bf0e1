"""Rewards of answers: asked on the main process, and all processes learn what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from swift.contracts import RewardItem, ScheduleContext
from swift.errors import ConfigError, SwiftError
from swift.toolkit import heartbeat
from swift_rl.environments.select import who
from swift_rl.options import OnlineOptions
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import check_columns, select_rewards
from swift_rl.rewards.verdicts import Verdict, with_traceback
from swift_rl.rounds.data import DrawnAnswer, Episode, Prompt
from swift_rl.rounds.files import FOLDER

T = TypeVar("T")
ENVIRONMENT = "environment"
"""The name of an environment's reward."""


CUT_OFF = "the answer was cut off at max_completion_length"
"""Why nothing is learned from an answer under `overlong_filter`."""


class EnvironmentFailed(SwiftError):
    """An environment that failed for more episodes of a round than may."""


class Judge:
    """Scores answers by the rewards of a run."""

    def __init__(self, context: ScheduleContext, options: OnlineOptions, columns: Sequence[str]) -> None:
        self._context = context
        self._options = options
        selected = select_rewards(options.reward_funcs, options)
        if not selected and options.environment is None:
            raise ConfigError(
                "Nothing says which answers are good.",
                hint="Name rewards: --reward_funcs exact_match (swift plugins lists them), FILE.py:FUNCTION, or "
                "--reward_model MODEL; an environment that gives some: --environment NAME; or, for grpo, a teacher: "
                "--teacher_model MODEL",
            )
        check_columns(selected, columns)
        self.names = [each.name for each in selected]
        self.weights = [each.weight for each in selected]
        """Of each reward in the sum."""
        if options.environment is not None:
            self._environment = who(options.environment) or "The environment"
            self.names.append(ENVIRONMENT)
            self.weights.append(options.environment_weight)
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
        if self._options.environment is not None:
            self._add_environment(prompts, answers)

    def _add_environment(self, prompts: Sequence[Prompt], answers: Sequence[DrawnAnswer]) -> None:
        """Add what the environment gave; raise where it failed for more episodes than may."""
        options = self._options
        failed = [answer for answer in answers if answer.episode is not None and answer.episode.failure]
        share = int(options.reward_max_failed * len(answers))
        most = 0 if options.reward_on_error == "stop" else max(share, min(1, len(answers) - 1))
        for answer in answers:
            episode = answer.episode
            answer.rewards[ENVIRONMENT] = None if episode is None else episode.reward
            if episode is None or not episode.failure:
                continue
            remark = "\n".join(filter(None, (episode.failure, episode.output)))
            answer.remarks[ENVIRONMENT] = remark
            zero = options.reward_on_error == "zero"
            answer.rewards[ENVIRONMENT] = 0.0 if zero else None
            answer.failed += [] if zero else [ENVIRONMENT]
        if failed:
            first = failed[0].episode
            assert first is not None
            told = (
                f"{self._environment} failed for {len(failed)} of {len(answers)} episodes. "
                f"{prompts[failed[0].prompt].place}: {first.failure}"
            )
            if len(failed) > most:
                allowed = "none may" if not most else f"{most} may"
                failure = EnvironmentFailed(
                    f"{told}; {allowed}.", hint="Fix it, or let more fail: --reward_max_failed 0.2"
                )
                raise with_traceback(failure, first.output)
            self._context.say(told)

    def _verdicts(self, prompts: Sequence[Prompt], answers: Sequence[DrawnAnswer]) -> list[dict[str, Verdict]]:
        assert self._pool is not None
        items = [
            RewardItem(
                messages=prompts[answer.prompt].messages if answer.episode is None else answer.episode.messages[:-1],
                completion=answer.text,
                completion_ids=answer.token_ids.tolist(),
                finish_reason=answer.finish_reason,
                columns=_columns(prompts[answer.prompt], answer.episode),
                place=prompts[answer.prompt].place,
            )
            for answer in answers
        ]
        return self._pool.score(items)

    def table(self, answers: Sequence[DrawnAnswer]) -> np.ndarray:
        """Return the rewards of answers, [answers, rewards] in float64, nan where there is none."""
        return np.array([[_number(answer, name) for name in self.names] for answer in answers], dtype=np.float64)

    def summed(self, answers: Sequence[DrawnAnswer], totals: np.ndarray) -> None:
        """Fill in the summed rewards of answers, nan for none, and why nothing is learned from some."""
        for answer, total in zip(answers, totals, strict=True):
            answer.reward = 0.0 if np.isnan(total) else float(total)
            answer.why_not = self._why_not(answer)

    def _why_not(self, answer: DrawnAnswer) -> str:
        if answer.failed:
            return f"the reward {', '.join(answer.failed)} failed"
        if not answer.scored:
            return "no reward applies"
        if self._options.overlong_filter and answer.finish_reason == "length":
            return CUT_OFF
        return ""

    def close(self) -> None:
        """End the processes of the rewards."""
        if self._pool is not None:
            self._pool.close()


def _columns(prompt: Prompt, episode: Episode | None) -> Mapping[str, Any]:
    return prompt.columns if episode is None else episode.seen_by_rewards(prompt.columns)


def on_main(context: ScheduleContext, work: Callable[[], T]) -> T:
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
