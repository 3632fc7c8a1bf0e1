"""The processes that run environments: each holds several episodes, and is ended if a step takes too long."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from swift.contracts import EpisodeStart, Observation, Turn
from swift_rl.options import OnlineOptions
from swift_rl.rewards.process import WorkerProcess, Workers


@dataclass
class EpisodeCall:
    """An episode as the run knows it, with the result of its environment's last call."""

    key: str
    start: EpisodeStart
    turns: list[Turn] = field(default_factory=list)
    seen: list[Observation] = field(default_factory=list)
    """What followed each turn."""
    first: list[dict[str, Any]] | None = None
    """The conversation that it begins with, where that is not the row's."""
    seconds: float = 0.0
    """How long its environment took so far."""
    failure: str = ""
    """Why it has no reward; empty where it has one."""
    output: str = ""
    """What the environment printed where it failed, and its traceback."""

    @property
    def over(self) -> bool:
        """Whether the environment has ended it, or failed."""
        return bool(self.failure) or (bool(self.seen) and self.seen[-1].done)


Waiting = dict[WorkerProcess[EpisodeCall] | None, deque[EpisodeCall]]
"""Calls to be made, in order, by the process that holds their episode; None holds those that no process has."""


class EnvironmentPool:
    """Runs episodes in processes that are started when they are first needed."""

    def __init__(
        self,
        described: Mapping[str, Any],
        options: OnlineOptions,
        heartbeat: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._described = described
        self._options = options
        self._heartbeat = heartbeat
        self._say = say
        self._reported_closing = False
        self._workers: Workers[EpisodeCall] = Workers(options)
        self._homes: dict[str, WorkerProcess[EpisodeCall]] = {}
        """Which process holds an episode."""

    def advance(self, calls: Sequence[EpisodeCall]) -> None:
        """Begin episodes that have no turns, and give others their last turn; fill in what follows."""
        waiting: Waiting = {}
        for each in calls:
            waiting.setdefault(self._homes.get(each.key), deque()).append(each)
        while any(waiting.values()) or self._workers.busy:
            self._deal(waiting)
            for call, reply, output, seconds in self._workers.replies("the process of the environment", self._too_long):
                call.seconds += seconds
                self._received(call, reply, output)

    def forget(self, calls: Sequence[EpisodeCall]) -> None:
        """Close the environments of episodes that are over."""
        for worker in self._workers.alive:
            keys = [call.key for call in calls if self._homes.get(call.key) is worker]
            if keys and worker.ended is None:
                worker.tell({"do": "close", "keys": keys, "step": self._options.environment_timeout})
        for call in calls:
            self._homes.pop(call.key, None)

    def close(self) -> None:
        """End the processes."""
        self._workers.close()

    def _deal(self, waiting: Waiting) -> None:
        """Give each idle process a call: of an episode that it holds, or that none holds."""
        idle = self._workers.idle()
        homeless = waiting.setdefault(None, deque())
        for home in [home for home in waiting if home is not None and home not in self._workers.alive]:
            homeless.extend(waiting.pop(home))
        if homeless and len(idle) > 1:  # the one that holds the fewest episodes first
            idle.sort(key=Counter(self._homes.values()).__getitem__)
        for worker in idle:
            if calls := waiting.get(worker) or homeless:
                self._give(worker, calls.popleft())
        while homeless and self._workers.may_grow:
            self._give(self._workers.start(), homeless.popleft())

    def _give(self, worker: WorkerProcess[EpisodeCall], call: EpisodeCall) -> None:
        self._homes[call.key] = worker
        left = self._options.episode_timeout - call.seconds
        # Where the episode is begun again, its earlier turns are made again in this time.
        limit = min(self._options.environment_timeout * max(1, len(call.turns)), max(left, 0.001))
        worker.give(call, self._message(call), limit)

    def _message(self, call: EpisodeCall) -> dict[str, Any]:
        return {
            "do": "episode",
            "environment": self._described,
            "key": call.key,
            "start": asdict(call.start),
            "turns": [asdict(turn) for turn in call.turns],
        }

    def _received(self, call: EpisodeCall, reply: Mapping[str, Any], output: str) -> None:
        self._heartbeat()
        if (closing := reply.get("closing")) and not self._reported_closing:
            self._reported_closing = True
            self._say(
                f"The environment {self._options.environment} failed in close: {closing[0]}. "
                "Further failures are not reported."
            )
        if "failure" in reply:
            call.failure = reply["failure"]
            call.output = "\n".join(filter(None, (output.rstrip(), reply.get("traceback", ""))))
        elif call.turns:
            self._observed(call, reply)
        else:
            call.first = reply["first"]

    def _observed(self, call: EpisodeCall, reply: Mapping[str, Any]) -> None:
        again = [_compared(Observation(**each)) for each in reply["replayed"] or ()]
        if reply["replayed"] is not None and again != [_compared(each) for each in call.seen]:
            call.failure = (
                "it was started again after its process ended, and its observations differ: an environment must be a "
                "function of its seed and the completions"
            )
            return
        call.seen.append(Observation(**reply["observation"]))

    def _too_long(self, call: EpisodeCall) -> str:
        left = self._options.episode_timeout - call.seconds
        if left <= self._options.environment_timeout:
            return f"the episode took longer than {self._options.episode_timeout:g} s"
        return f"a step took longer than {self._options.environment_timeout:g} s"


def _compared(seen: Observation) -> tuple[Any, ...]:
    """Return what the model and its reward depend on."""
    return list(map(dict, seen.messages)), seen.text, seen.keep, seen.reward, seen.done
