"""The episodes that one process holds: the side of the process that may be ended at any time."""

from __future__ import annotations

import asyncio
import inspect
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swift.contracts import EpisodeStart, Turn
from swift.errors import SwiftError
from swift.untrusted import time_limit
from swift_rl.environments.loading import faults, new_episode
from swift_rl.environments.observed import plain, plain_messages
from swift_rl.rewards.verdicts import in_one_line, traceback_text

CLOSING = 30.0
"""Seconds that episodes which are over may take to close, together."""
_SHORTEST = 0.05
"""Seconds that each of them has in any case."""


@dataclass
class _Held:
    """An episode under way."""

    episode: Any
    turns: int = 0


class HostedEpisodes:
    """Starts episodes, passes them completions and closes them, as the run requests."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._doing = ""
        """Which function of an environment is at work."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._not_closed: list[str] = []
        """Why episodes did not close, until the run is told."""

    def describe(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an environment wants, or why it is none."""
        from swift_rl.environments.loading import episode_class

        try:
            fault = faults(task["environment"])
            wants = getattr(episode_class(task["environment"]), "wants", ())
            listed = isinstance(wants, Iterable) and not isinstance(wants, str)
            if not listed or not all(isinstance(each, str) for each in wants):
                fault = fault or "has wants that are not column names"
            return {"fault": fault, "wants": [] if fault else [*wants]}
        except BaseException as problem:
            return {"failure": in_one_line(problem), "traceback": traceback_text(problem)}

    def reply(self, task: Mapping[str, Any], begun: Callable[[], None]) -> dict[str, Any]:
        """Return what follows the last of an episode's turns, or its first messages where it has none yet.

        An episode that is not held here, because its process ended, starts again with the same completions;
        `replayed` has its observations of this time, and `closing` the reasons why earlier episodes did not close.
        """
        reply = self._reply(task, begun)
        not_closed, self._not_closed = self._not_closed, []
        return {**reply, "closing": not_closed} if not_closed else reply

    def _reply(self, task: Mapping[str, Any], begun: Callable[[], None]) -> dict[str, Any]:
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
            started = time.monotonic()
            seen = self._step(held, task, turns[-1])
            if seen["done"]:  # in the time that the step has left, or its observation would be lost
                left = task.get("seconds", 2 * CLOSING) - (time.monotonic() - started)
                self._close(key, min(CLOSING, left / 2))
            return {"observation": seen, "replayed": replayed}
        except BaseException as problem:  # SystemExit too: this process decides when it ends
            self._held.pop(key, None)
            return {
                "failure": f"{in_one_line(problem)} (in {self._doing})",
                "traceback": traceback_text(problem),
            }

    def close(self, keys: Sequence[str], step: float) -> None:
        """Close episodes that are over, in half of the seconds that a step may take: another's may be next."""
        end = time.monotonic() + min(CLOSING, step / 2)
        for key in keys:
            self._close(key, end - time.monotonic())

    def _again(self, task: Mapping[str, Any], turns: Sequence[Any], begun: Callable[[], None]) -> Any:
        self._close(task["key"])
        self._doing = "its constructor"
        episode = new_episode(task["environment"])
        begun()
        start = EpisodeStart(**task["start"])
        _seed(start.seed, 0)
        self._doing = "reset"
        first = self._settled(episode.reset(start))
        messages = None if first is None else plain_messages(first, "reset")
        held = self._held[task["key"]] = _Held(episode)
        return held, messages, [self._step(held, task, turn) for turn in turns]

    def _step(self, held: _Held, task: Mapping[str, Any], turn: Mapping[str, Any]) -> dict[str, Any]:
        self._doing = "step"
        _seed(task["start"]["seed"], turn["number"])
        seen = self._settled(held.episode.step(Turn(**turn)))
        held.turns += 1
        return plain(seen)

    def _close(self, key: str, seconds: float = CLOSING) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        seconds = max(seconds, _SHORTEST)
        late = SwiftError(f"took longer than {seconds:.3g} s")
        try:
            with time_limit(seconds, late):
                close = getattr(held.episode, "close", None)
                if close is not None:
                    self._settled(close())
        except BaseException as problem:  # SystemExit too: the episode is over, and has its reward
            self._not_closed.append(late.message if problem is late else in_one_line(problem))

    def _settled(self, returned: Any) -> Any:
        if not inspect.isawaitable(returned):
            return returned
        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def wait() -> Any:
            return await returned

        return self._loop.run_until_complete(wait())


def _seed(seed: int, turn: int) -> None:
    """Let random numbers of the process depend on the episode and the turn, whichever other episodes it holds."""
    random.seed(f"{seed} {turn}")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(random.getrandbits(32))
