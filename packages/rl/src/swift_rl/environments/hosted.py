"""The episodes that one process holds: the side of the process that may be ended at any time."""

from __future__ import annotations

import asyncio
import inspect
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from swift.contracts import EpisodeStart, Observation, Turn
from swift_rl.environments.loading import faults, new_episode
from swift_rl.rewards.verdicts import in_one_line, traceback_text


@dataclass
class _Held:
    """An episode under way."""

    episode: Any
    turns: int = 0


class HostedEpisodes:
    """Begins episodes, gives them answers, and closes them, as the run asks."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def describe(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an environment wants, or why it is none."""
        from swift_rl.environments.loading import episode_class

        try:
            fault = faults(task["environment"])
            wants = tuple(getattr(episode_class(task["environment"]), "wants", ()))
            return {"fault": fault, "wants": wants}
        except BaseException as problem:
            return {"failure": in_one_line(problem), "traceback": traceback_text(problem)}

    def answer(self, task: Mapping[str, Any], begun: Callable[[], None]) -> dict[str, Any]:
        """Return what follows the last of an episode's turns, or its first messages where it has none yet.

        An episode that is not held here, because another process was ended, is begun again and given the same answers;
        `replayed` has what it said to them this time.
        """
        key, turns = task["key"], task["turns"]
        try:
            held = self._held.get(key)
            if held is None or held.turns != len(turns) - 1:
                held, first, replayed = self._again(task, turns[:-1], begun)
                if not turns:
                    return {"first": first}
            else:
                begun()
                replayed = None
            seen = self._step(held, task, turns[-1])
            if seen["done"]:
                self._close(key)
            return {"observation": seen, "replayed": replayed}
        except BaseException as problem:  # SystemExit too: this process decides when it ends
            self._held.pop(key, None)
            return {"failure": in_one_line(problem), "traceback": traceback_text(problem)}

    def close(self, keys: Sequence[str]) -> None:
        """Close episodes that are over."""
        for key in keys:
            self._close(key)

    def _again(self, task: Mapping[str, Any], turns: Sequence[Any], begun: Callable[[], None]) -> Any:
        self._close(task["key"])
        episode = new_episode(task["environment"])
        begun()
        start = EpisodeStart(**task["start"])
        _seed(start.seed, 0)
        first = self._settled(episode.reset(start))
        held = self._held[task["key"]] = _Held(episode)
        return held, None if first is None else [dict(each) for each in first], [
            self._step(held, task, turn) for turn in turns
        ]  # fmt: skip

    def _step(self, held: _Held, task: Mapping[str, Any], turn: Mapping[str, Any]) -> dict[str, Any]:
        _seed(task["start"]["seed"], turn["number"])
        seen = self._settled(held.episode.step(Turn(**turn)))
        held.turns += 1
        if not isinstance(seen, Observation):
            raise TypeError(f"step returned {type(seen).__name__}, which is no swift.contracts.Observation")
        _check(seen)
        return {**asdict(seen), "done": bool(seen.done) or not (seen.messages or seen.text)}

    def _close(self, key: str) -> None:
        held = self._held.pop(key, None)
        close = None if held is None else getattr(held.episode, "close", None)
        if close is not None:
            try:
                self._settled(close())
            except Exception as problem:
                sys.stdout.write(f"close: {in_one_line(problem)}\n")  # the episode is over, and has its reward

    def _settled(self, returned: Any) -> Any:
        if not inspect.isawaitable(returned):
            return returned
        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def wait() -> Any:
            return await returned

        return self._loop.run_until_complete(wait())


def _check(seen: Observation) -> None:
    """Raise where what an environment observed cannot be shown to the model, or be learned from."""
    if not all(isinstance(each, Mapping) for each in seen.messages):
        raise TypeError("step returned an Observation whose messages are no mappings")
    if seen.text is not None and not isinstance(seen.text, str):
        raise TypeError("step returned an Observation whose text is none")
    reward: Any = seen.reward
    if reward is not None and (isinstance(reward, str) or not math.isfinite(reward)):
        raise ValueError(f"step returned the reward {reward!r}, which is no finite number")


def _seed(seed: int, turn: int) -> None:
    """Let random numbers of the process depend on the episode and the turn, whichever other episodes it holds."""
    random.seed(f"{seed} {turn}")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(random.getrandbits(32))
