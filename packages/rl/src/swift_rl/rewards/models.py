"""Models that score completions: a run, checkpoint or export in this process, or a server."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean
from typing import Any, cast

from swift.contracts import Reward, RewardItem
from swift.errors import ModelError
from swift_infer import BROKEN, RequestRefused, json_numbers, opener_without_redirects, read_response
from swift_rl.reward_options import RewardOptions, is_address

WAITED = 120.0
"""Seconds for one request, where nothing else is asked for."""


def posted(address: str, body: Mapping[str, Any], *, key: str | None = None, seconds: float = WAITED) -> Any:
    """Send JSON to a server and return the JSON of its response. Raise `OSError` with the reason and the address."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    try:
        request = urllib.request.Request(address, json.dumps(body, default=str).encode(), headers)
        response = read_response(opener_without_redirects(), request, seconds)
    except RequestRefused as problem:
        reason = (
            f"redirects to {problem.leads_to}" if problem.leads_to else problem.body[:500].decode("utf-8", "replace")
        )
        raise OSError(f"{address} returned {problem.code} {problem.reason}: {reason}") from None
    except (*BROKEN, ValueError) as problem:
        raise OSError(f"{address} cannot be reached: {getattr(problem, 'reason', problem)}") from None
    try:
        return json.loads(response)
    except (ValueError, RecursionError):
        raise OSError(f"{address} returned invalid JSON") from None


_AT_ONCE = 8
"""Requests to a server."""
_OF_STEPS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "prod": math.prod,
    "last": lambda scores: scores[-1],
    "mean": fmean,
}
"""What `step_reward` makes of the scores of steps."""


def open_reward_model(address: str, options: RewardOptions) -> Reward:
    """Return the reward of a folder, or of a server's address; raise where a folder holds no such model."""
    if options.step_reward is not None:
        return cast(Reward, StepReward(address, options.step_reward, options.step_separator))
    return cast(Reward, ServerReward(address) if is_address(address) else ModelReward(address))


class ModelReward:
    """A reward model in this process: the one output of its head, at the last token of the conversation."""

    def __init__(self, model: str) -> None:
        from swift_infer import open_scorer

        self._scorer = open_scorer(model)

    def score(self, items: Sequence[RewardItem]) -> list[float]:
        """Return the score of each conversation with its completion."""
        return self._scorer.scores([conversation_of(item) for item in items])

    def close(self) -> None:
        """Let the model go."""
        self._scorer.close()


class StepReward:
    """A process reward model in this process: the scores of a completion's steps, made one number."""

    def __init__(self, model: str, kind: str, separator: str | None) -> None:
        from swift_infer import open_step_scorer

        self._scorer = open_step_scorer(model, separator)
        self._of_steps = _OF_STEPS[kind]

    def score(self, items: Sequence[RewardItem]) -> list[float]:
        """Return the reward of each completion, from 0 to 1; 0 of one without steps."""
        scores = self._scorer.scores([(item.messages, item.completion) for item in items])
        return [self._of_steps(each.tolist()) if len(each) else 0.0 for each in scores]

    def close(self) -> None:
        """Let the model go."""
        self._scorer.close()


class ServerReward:
    """A reward model behind `/classify`, as vLLM serves one: the one number of its head before any activation."""

    def __init__(self, address: str, *, seconds: float = WAITED) -> None:
        self._seconds = seconds
        self._address = f"{address.rstrip('/').removesuffix('/classify').removesuffix('/v1')}/classify"

    def score(self, items: Sequence[RewardItem]) -> list[float | Exception]:
        """Return the score of each conversation, or why the server did not give one."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return [*threads.map(self._score, items)]

    def _score(self, item: RewardItem) -> float | Exception:
        try:
            body = {"messages": conversation_of(item), "use_activation": False}
            response = posted(self._address, body, seconds=self._seconds)
            return _only_number(json_numbers(self._address, response, "data", 0, "probs"))
        except (OSError, ModelError) as problem:
            return problem


def conversation_of(item: RewardItem) -> list[dict[str, Any]]:
    """Return the conversation with the completion as its last message."""
    return [*map(dict, item.messages), {"role": "assistant", "content": item.completion}]


def _only_number(outputs: Sequence[float]) -> float:
    if len(outputs) != 1:
        raise ModelError(f"The server returned {len(outputs)} scores. Expected: 1, from a reward model.")
    return float(outputs[0])
