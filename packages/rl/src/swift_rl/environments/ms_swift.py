"""Names that ms-swift's plugin files for several turns import; its schedulers and gyms as environments."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

from swift.contracts import EpisodeStart, Observation, Turn
from swift_rl.rewards.ms_swift import stand_in

ENVS: dict[str, Any] = {}
"""Name → gym environment that a plugin registered."""
SCHEDULERS: dict[str, Any] = {}
"""Name → scheduler of turns that a plugin registered."""


@dataclass
class RolloutRequest:
    """A conversation that is to be continued, as schedulers change it."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    data_dict: dict[str, Any] = field(default_factory=dict)
    """All columns of the row."""
    uuid: str | None = None
    images: list[Any] = field(default_factory=list)
    tools: list[Any] | None = None
    audios: list[Any] = field(default_factory=list)
    videos: list[Any] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)


@dataclass
class ResponseChoice:
    """One completion, as schedulers see it."""

    index: int
    message: Any
    finish_reason: str
    logprobs: Any = None
    token_ids: list[int] = field(default_factory=list)


class GymEnv:
    """Base of the environments that ms-swift's plugins register in `envs`: coroutines reset, step and close."""

    def __init__(self, env_config: Any) -> None:
        self.env_config = env_config


class TurnScheduler:
    """Base of the schedulers that ms-swift's plugins register in `multi_turns`."""

    def __init__(self, infer_engine: Any = None, max_turns: int | None = None, *_: Any, **more: Any) -> None:
        self.infer_engine = infer_engine
        self.max_turns = max_turns
        self._tokenizer = more.get("tokenizer")

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer of the model."""
        return _loaded(self._tokenizer) if isinstance(self._tokenizer, str) else self._tokenizer

    async def on_trajectory_start(self, protocol: Any) -> None:
        """Do nothing before the first turn."""

    async def on_turn_end(self, infer_request: Any, response_choice: Any, current_turn: int) -> Mapping[str, Any]:
        """Return nothing after a turn."""
        return {}

    def check_finished(self, infer_request: Any, response_choice: Any, current_turn: int) -> bool:
        """Return whether the conversation is over: cut off, or as long as it may be."""
        return response_choice.finish_reason == "length" or bool(self.max_turns and current_turn >= self.max_turns)

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> Mapping[str, Any]:
        """Return the request of the next turn."""
        raise NotImplementedError(f"{type(self).__name__} defines no step")

    async def run(self, *_: Any, **__: Any) -> Any:
        """Raise: turns are driven by the run."""
        raise NotImplementedError("the run drives the turns: a scheduler must define step and check_finished")

    @staticmethod
    def _extract_logprobs_from_choice(response_choice: Any) -> list[float]:
        """Return no log-probabilities: those of the samples stay with the run."""
        return []


class GymEpisode:
    """An episode of a gym environment."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._messages: list[dict[str, Any]] = []

    async def reset(self, start: EpisodeStart) -> Sequence[Mapping[str, Any]]:
        """Return the system message and the first observation."""
        config = start.columns.get("env_config") or {}
        name = config.get("name", self._name)
        if name not in ENVS:
            raise LookupError(f"no environment {name!r} is registered. Registered: {', '.join(ENVS) or 'none'}")
        self._env = ENVS[name](config)
        question, _, system = await self._env.reset(_request(start))
        first = [{"role": "system", "content": system}] if system else []
        self._messages = [*first, {"role": "user", "content": question}]
        return copy.deepcopy(self._messages)

    async def step(self, turn: Turn) -> Observation:
        """Return the next observation and the reward."""
        self._messages.append({"role": "assistant", "content": turn.text})
        reply, reward, done, info = await self._env.step(copy.deepcopy(self._messages))
        added = [] if done else [{"role": "user", "content": reply}]
        self._messages += added
        return Observation(copy.deepcopy(added), float(reward), bool(done), info or {})

    async def close(self) -> None:
        """Close the environment."""
        if hasattr(self, "_env"):
            await self._env.close()


class ScheduledEpisode:
    """An episode of a scheduler."""

    def __init__(self, scheduler: Any, settings: Mapping[str, Any]) -> None:
        self._scheduler = scheduler(max_turns=settings.get("max_turns"), tokenizer=settings.get("tokenizer"))
        self._rewarded = 0.0
        if _names_tokenizer(scheduler):  # now, where the time that a step takes is not yet counted
            _ = self._scheduler.tokenizer

    async def reset(self, start: EpisodeStart) -> Sequence[Mapping[str, Any]] | None:
        """Return the conversation where the scheduler changes it."""
        self._request = _request(start)
        before = copy.deepcopy(self._request.messages)
        await self._scheduler.on_trajectory_start([self._request])
        return None if self._request.messages == before else copy.deepcopy(self._request.messages)

    async def step(self, turn: Turn) -> Observation:
        """Return what the scheduler adds to the conversation after a completion."""
        messages = self._request.messages
        if messages and messages[-1]["role"] == "assistant":
            messages[-1]["content"] += turn.text
        else:
            messages.append({"role": "assistant", "content": turn.text})
        before = copy.deepcopy(messages)
        message = SimpleNamespace(role="assistant", content=turn.text, tool_calls=None)
        choice = ResponseChoice(0, message, turn.finish_reason, None, list(turn.token_ids))
        result = dict(await self._scheduler.on_turn_end(self._request, choice, turn.number) or {})
        info = dict(result.get("rollout_infos") or {})
        over = self._scheduler.check_finished(self._request, choice, turn.number)
        if result.get("done", over):
            return Observation((), self._reward(info), done=True, info=info)
        returned = self._scheduler.step(self._request, choice, turn.number)
        self._request = returned["infer_request"]
        info |= returned.get("rollout_infos") or {}
        return _difference(before, self._request.messages, turn, self._reward(info), info)

    async def close(self) -> None:
        """Let a scheduler of gym environments close the one of an episode that ended by a limit."""
        close = getattr(self._scheduler, "_close_and_remove", None)
        if close is not None and hasattr(self, "_request"):
            await close(self._request.uuid)

    def _reward(self, info: Mapping[str, Any]) -> float | None:
        """Return what the total reward of the scheduler has grown by; None where it tells none."""
        if "total_reward" not in info:
            return None
        total = float(info["total_reward"])
        gained, self._rewarded = total - self._rewarded, total
        return gained


def _difference(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], turn: Turn, reward: float | None, info: Any
) -> Observation:
    """Return what was added to a conversation, or to its last completion."""
    same = len(before) - 1
    if list(after[:same]) != list(before[:same]) or len(after) <= same or after[same].get("role") != "assistant":
        raise ValueError("step changes earlier messages, but later turns must begin with the sampled tokens")
    then, now = str(before[same]["content"]), str(after[same]["content"])
    added = [dict(message) for message in after[same + 1 :] if message.get("content")]
    if now == then:
        return Observation(added, reward, not added, info)
    if added:
        raise ValueError("step changes the completion and adds messages. Expected: only one of both")
    kept = next((at for at, (one, other) in enumerate(zip(then, now, strict=False)) if one != other), len(then))
    kept = min(kept, len(now))
    own = len(then) - len(turn.text)
    if kept < own:
        raise ValueError("step changes an earlier completion, but later turns must begin with the sampled tokens")
    keep = None if kept == len(then) else kept - own
    return Observation((), reward, info=info, text=now[kept:], keep=keep)


@cache
def _loaded(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _names_tokenizer(scheduler: type) -> bool:
    """Return whether a method of a scheduler speaks of the tokenizer."""
    own = [vars(each) for each in scheduler.__mro__ if each not in (TurnScheduler, object)]
    methods = [value.__code__ for members in own for value in members.values() if hasattr(value, "__code__")]
    return any("tokenizer" in code.co_names for code in methods)


def _request(start: EpisodeStart) -> RolloutRequest:
    messages = [dict(message) for message in start.messages]
    return RolloutRequest(messages, dict(start.columns), f"{start.source}#{start.seed}#{random.getrandbits(64):x}")


def provide() -> None:
    """Make the imports of ms-swift's plugin files for several turns work in this process."""
    gym = {"Env": GymEnv, "envs": ENVS}
    turns = {"MultiTurnScheduler": TurnScheduler, "RolloutScheduler": TurnScheduler, "multi_turns": SCHEDULERS}
    protocol = {
        "RolloutInferRequest": RolloutRequest,
        "InferRequest": RolloutRequest,
        "ChatCompletionResponseChoice": ResponseChoice,
        **dict.fromkeys(("ChatCompletionResponse", "RequestConfig", "RolloutOutput"), SimpleNamespace),
    }
    engines = {**protocol, **dict.fromkeys(("TransformersEngine", "PtEngine", "VllmEngine", "GRPOVllmEngine"), object)}
    template = {"Messages": list, "Template": object}
    for name, members in (
        ("swift.rollout", gym | turns),
        ("swift.rollout.gym_env", gym),
        ("swift.rollout.multi_turn", turns | gym),
        ("swift.plugin.multi_turn", turns),
        ("swift.plugin.env", gym),
        ("swift.infer_engine", engines),
        ("swift.infer_engine.protocol", protocol),
        ("swift.llm", engines | template),
        ("swift.llm.infer.protocol", protocol),
        ("swift.template", template),
    ):
        stand_in(name, members)
