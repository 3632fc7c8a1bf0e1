"""Rewards of completions: computed on the main process and broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from swift.contracts import RewardItem, ScheduleContext
from swift.errors import ConfigError, SwiftError
from swift.toolkit import heartbeat
from swift_rl.environments.select import who
from swift_rl.options import OnlineOptions
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import check_columns, select_rewards
from swift_rl.rewards.verdicts import Verdict, with_traceback
from swift_rl.rounds.data import Prompt, RolloutCompletion
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

    def _verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[RolloutCompletion]
    ) -> list[dict[str, Verdict]]:
        assert self._pool is not None
        items = []
        for completion in completions:
            prompt, episode = prompts[completion.prompt], completion.episode
            messages, columns = prompt.messages, prompt.columns
            if episode is not None:
                messages, columns = episode.messages[:-1], episode.seen_by_rewards(columns)
            ids, reason = completion.token_ids.tolist(), completion.finish_reason
            items.append(RewardItem(messages, completion.text, ids, reason, columns, prompt.source))
        verdicts = self._pool.score(items)
        if self._options.environment is not None:
            for verdict, of_environment in zip(verdicts, self._of_environment(prompts, completions), strict=True):
                verdict[ENVIRONMENT] = of_environment
        return verdicts

    def _of_environment(self, prompts: Sequence[Prompt], completions: Sequence[RolloutCompletion]) -> list[Verdict]:
        """Return the environment's rewards; raise if it failed for more episodes than allowed."""
        in_failures = 0.0 if self._options.reward_on_error == "zero" else None
        verdicts, failed = [], []
        for completion in completions:
            episode = completion.episode
            assert episode is not None
            verdict = Verdict(episode.reward)
            if episode.failure:
                verdict = Verdict(in_failures, episode.failure, episode.output)
                failed.append((prompts[completion.prompt].source, verdict))
            verdicts.append(verdict)
        if failed:
            source, first = failed[0]
            summary = f"{self._environment} failed for {len(failed)} of {len(completions)} episodes"
            most = self._options.most_failed(len(completions))
            if len(failed) > most:
                failure = EnvironmentFailed(
                    f"{summary}, and at most {most} may fail. {source}: {first.failure}",
                    hint="Fix it, or allow more failures: --reward_max_failed 0.2",
                )
                raise with_traceback(failure, first.output)
            self._context.say(f"{summary}. {source}: {first.failure}")
        return verdicts

    def table(self, completions: Sequence[RolloutCompletion]) -> np.ndarray:
        """Return the rewards, [completions, rewards] in float64: nan for a missing one, and in all of a failed row."""
        rows = [[None if each.failed else each.rewards[name] for name in self.names] for each in completions]
        return np.array(rows, dtype=np.float64)  # None becomes nan

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


def _remark(verdict: Verdict) -> str:
    return "\n".join(filter(None, (verdict.failure, verdict.output.rstrip())))
