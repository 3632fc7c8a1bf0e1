"""Rewards of completions: computed on the main process and broadcast."""

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
from swift_rl.rounds.data import Episode, Prompt, RolloutCompletion
from swift_rl.rounds.files import FOLDER

T = TypeVar("T")
ENVIRONMENT = "environment"
"""The name of an environment's reward."""
CUT_OFF = "the completion was cut off at max_completion_length"
"""Why no step learns from a completion under `overlong_filter`."""


class EnvironmentFailed(SwiftError):
    """An environment failed for more episodes of a round than allowed."""


class RewardScorer:
    """Scores completions by the rewards of a run."""

    def __init__(self, context: ScheduleContext, options: OnlineOptions, columns: Sequence[str]) -> None:
        self._context = context
        self._options = options
        selected = select_rewards(options.reward_funcs, options)
        if not selected and options.environment is None:
            raise ConfigError(
                "No reward is configured.",
                hint="Pass --reward_funcs NAME or FILE.py:FUNCTION (swift plugins lists names), --reward_model MODEL, "
                "--environment NAME, or for grpo --teacher_model MODEL.",
            )
        check_columns(selected, columns)
        self.names = [each.name for each in selected]
        self.weights = [each.weight for each in selected]
        """By reward, in the weighted sum."""
        if options.environment is not None:
            self._environment = who(options.environment) or "The environment"
            self.names.append(ENVIRONMENT)
            self.weights.append(options.environment_weight)
        self._pool: RewardPool | None = None
        if context.topology.is_main:
            folder = context.folder / FOLDER
            self._pool = RewardPool(selected, options, context.say, folder=folder, heartbeat=heartbeat)

    def score(self, prompts: Sequence[Prompt], completions: Sequence[RolloutCompletion]) -> None:
        """Fill in the rewards of completions. Called on every process."""
        verdicts = on_main(self._context, lambda: self._verdicts(prompts, completions))
        for completion, verdict in zip(completions, verdicts, strict=True):
            completion.rewards = {name: each.value for name, each in verdict.items()}
            completion.remarks = {name: remark for name, each in verdict.items() if (remark := _remark(each))}
            completion.failed = [name for name, each in verdict.items() if each.failure and each.value is None]
        if self._options.environment is not None:
            self._add_environment(prompts, completions)

    def _add_environment(self, prompts: Sequence[Prompt], completions: Sequence[RolloutCompletion]) -> None:
        """Add the environment's rewards; raise if it failed for more episodes than allowed."""
        options = self._options
        failed = [
            completion for completion in completions if completion.episode is not None and completion.episode.failure
        ]
        tolerated = int(options.reward_max_failed * len(completions))
        most = 0 if options.reward_on_error == "stop" else max(tolerated, min(1, len(completions) - 1))
        for completion in completions:
            episode = completion.episode
            completion.rewards[ENVIRONMENT] = None if episode is None else episode.reward
            if episode is None or not episode.failure:
                continue
            remark = "\n".join(filter(None, (episode.failure, episode.output)))
            completion.remarks[ENVIRONMENT] = remark
            zero = options.reward_on_error == "zero"
            completion.rewards[ENVIRONMENT] = 0.0 if zero else None
            completion.failed += [] if zero else [ENVIRONMENT]
        if failed:
            first = failed[0].episode
            assert first is not None
            summary = f"{self._environment} failed for {len(failed)} of {len(completions)} episodes"
            example = f"{prompts[failed[0].prompt].source}: {first.failure}"
            if len(failed) > most:
                failure = EnvironmentFailed(
                    f"{summary}, and at most {most} may fail. {example}",
                    hint="Fix it, or allow more failures: --reward_max_failed 0.2",
                )
                raise with_traceback(failure, first.output)
            self._context.say(f"{summary}. {example}")

    def _verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[RolloutCompletion]
    ) -> list[dict[str, Verdict]]:
        assert self._pool is not None
        items = [
            RewardItem(
                messages=prompts[completion.prompt].messages
                if completion.episode is None
                else completion.episode.messages[:-1],
                completion=completion.text,
                completion_ids=completion.token_ids.tolist(),
                finish_reason=completion.finish_reason,
                columns=_columns(prompts[completion.prompt], completion.episode),
                source=prompts[completion.prompt].source,
            )
            for completion in completions
        ]
        return self._pool.score(items)

    def table(self, completions: Sequence[RolloutCompletion]) -> np.ndarray:
        """Return the rewards of completions, [completions, rewards] in float64, nan for a missing one."""
        return np.array(
            [[_number(completion, name) for name in self.names] for completion in completions], dtype=np.float64
        )

    def fill_totals(self, completions: Sequence[RolloutCompletion], totals: np.ndarray) -> None:
        """Fill in the summed rewards of completions (nan: none), and why no step learns from some."""
        for completion, total in zip(completions, totals, strict=True):
            completion.reward = 0.0 if np.isnan(total) else float(total)
            completion.why_not = self._why_not(completion)

    def _why_not(self, completion: RolloutCompletion) -> str:
        if completion.failed:
            return f"the reward {', '.join(completion.failed)} failed"
        if not completion.scored:
            return "no reward applies"
        if self._options.overlong_filter and completion.finish_reason == "length":
            return CUT_OFF
        return ""

    def close(self) -> None:
        """End the processes of the rewards."""
        if self._pool is not None:
            self._pool.close()


def _columns(prompt: Prompt, episode: Episode | None) -> Mapping[str, Any]:
    return prompt.columns if episode is None else episode.seen_by_rewards(prompt.columns)


def on_main(context: ScheduleContext, work: Callable[[], T]) -> T:
    """Return the main process's result, or raise its error, on every process."""
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


def _number(completion: RolloutCompletion, name: str) -> float:
    """Return a reward; nan for a completion with any failed reward."""
    value = None if completion.failed else completion.rewards[name]
    return float("nan") if value is None else float(value)


def _remark(verdict: Verdict) -> str:
    return "\n".join(filter(None, (verdict.failure, verdict.output.rstrip())))
