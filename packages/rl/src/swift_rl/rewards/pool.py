"""The pool of processes that compute rewards: each call scores one completion, and is ended if it takes too long."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swift.contracts import RewardItem
from swift.errors import SwiftError
from swift.plugins import interrupts
from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.failures import Failures
from swift_rl.rewards.process import Workers
from swift_rl.rewards.select import SelectedReward
from swift_rl.rewards.verdicts import MOST_OUTPUT, Verdict, checked, in_one_line, traceback_text


@dataclass
class Call:
    """One call of a reward: for one completion, or for all of a round where it takes them at once."""

    reward: SelectedReward
    items: list[RewardItem]
    positions: list[list[int]]
    """Of each item: the positions in the round of the completions that equal it."""
    made: int = 0
    """How often it was made and failed."""


class RewardPool:
    """Scores completions by the rewards that a run selected. Its processes are started when they are first needed.

    `heartbeat` is called whenever a call is done. If failed rewards end the run, their completions are written to
    `folder` (by default a temporary one).
    """

    def __init__(
        self,
        selected: Sequence[SelectedReward],
        options: RewardOptions,
        say: Callable[[str], None] = lambda _: None,
        *,
        folder: Path | None = None,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        self._selected = tuple(selected)
        self._options = options
        self._say = say
        self._folder = folder
        self._heartbeat = heartbeat
        self._workers: Workers[Call] = Workers(options)

    def score(self, items: Sequence[RewardItem]) -> list[dict[str, Verdict]]:
        """Return the verdicts of the rewards on each completion, in order. Equal completions are scored once.

        Raise `SwiftError` if a reward fails for more completions than the options allow.
        """
        verdicts: list[dict[str, Verdict]] = [{} for _ in items]
        failures = {reward.name: Failures(reward, items, self._options, self._folder) for reward in self._selected}
        calls = [call for reward in self._selected for call in _calls(reward, items)]

        def note(call: Call, positions: Sequence[int], verdict: Verdict) -> None:
            for index in positions:
                verdicts[index][call.reward.name] = failures[call.reward.name].noted(index, verdict)

        try:
            for call in calls:
                if call.reward.isolation == "inline":
                    self._compute_here(call, note)
            self._compute(deque(call for call in calls if call.reward.isolation != "inline"), note)
        except BaseException:
            self._workers.end(self._workers.busy)
            raise
        for failed in failures.values():
            if summary := failed.summary():
                self._say(summary)
        return verdicts

    def close(self) -> None:
        """End the processes and remove their folders."""
        self._workers.close()
        for reward in self._selected:
            try:
                if (close := getattr(reward.reward, "close", None)) is not None:
                    close()
            except BaseException as problem:  # its completions are scored
                if issubclass(type(problem), SwiftError) or interrupts(problem):
                    raise
                self._say(f"{reward.title} failed in close: {in_one_line(problem)}")

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compute_here(self, call: Call, note: Note) -> None:
        """Make a call in this process, as often as it may fail."""
        while True:
            started = time.monotonic()
            reply: dict[str, Any]
            try:
                assert call.reward.reward is not None
                reply = {"values": checked(call.reward.reward.score(call.items), len(call.items))}
            except BaseException as problem:  # SystemExit too: this process is the run's
                if issubclass(type(problem), SwiftError) or interrupts(problem):
                    raise
                reply = {"failure": in_one_line(problem), "traceback": traceback_text(problem)}
            call.made += 1
            if "values" in reply or call.made > self._options.reward_retries:
                self._finish(call, {**reply, "seconds": time.monotonic() - started}, "", note)
                return

    def _compute(self, waiting: deque[Call], note: Note) -> None:
        """Make calls in as many processes as there may be, until each has its reply."""

        def late(call: Call) -> str:
            return f"took longer than {self._options.reward_timeout:g} s"

        while waiting or self._workers.busy:
            self._deal(waiting)
            for call, reply, output, seconds in self._workers.replies("the process that computed it", late):
                call.made += 1
                if "failure" in reply and call.made <= self._options.reward_retries:
                    waiting.append(call)
                else:
                    self._finish(call, {"seconds": seconds, **reply}, output, note)

    def _deal(self, waiting: deque[Call]) -> None:
        """Give each idle process a call, and start processes where all are busy."""
        idle = self._workers.idle()
        while waiting and (idle or self._workers.may_grow):
            call, worker = waiting.popleft(), idle.pop() if idle else self._workers.start()
            described = {"do": "score", "reward": call.reward.described, "items": [asdict(item) for item in call.items]}
            worker.give(call, described, self._options.reward_timeout)

    def _finish(self, call: Call, reply: Mapping[str, Any], output: str, note: Note) -> None:
        """Note the verdict on each completion of a call."""
        self._heartbeat()
        values = reply.get("values") or [(None, reply["failure"])] * len(call.items)
        printed = "\n".join(filter(None, (output.rstrip(), reply.get("traceback", ""))))[: 2 * MOST_OUTPUT]
        for (value, failure), positions in zip(values, call.positions, strict=True):
            note(call, positions, Verdict(value, failure, printed, float(reply["seconds"])))


Note = Callable[[Call, Sequence[int], Verdict], None]


def _calls(reward: SelectedReward, items: Sequence[RewardItem]) -> list[Call]:
    """Return the calls that score some completions: one for all of them, or one for each that differs."""
    if reward.batched:
        return [Call(reward, list(items), [[index] for index in range(len(items))])] if items else []
    alike: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        alike.setdefault(_key(item), []).append(index)
    return [Call(reward, [items[positions[0]]], [positions]) for positions in alike.values()]


def _key(item: RewardItem) -> str:
    seen = (item.messages, item.completion, list(item.completion_ids), item.finish_reason, item.columns)
    return json.dumps(seen, default=str)
