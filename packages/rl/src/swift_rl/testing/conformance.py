"""Conformance kits of rewards and of environments: test classes to inherit from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pytest

from swift.contracts import EpisodeStart, RewardItem, Turn
from swift.errors import SwiftError
from swift_rl.environments.hosted import HostedEpisodes
from swift_rl.environments.select import select_environment
from swift_rl.options import OnlineOptions
from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.loading import load_reward
from swift_rl.rewards.pool import RewardPool
from swift_rl.rewards.select import check_columns, select_rewards
from swift_rl.rewards.tool_calls import calls_in

Values = list[float | None]


class RewardConformance:
    """Scores completions in processes of their own, as a run does, and compares their values."""

    reward: ClassVar[str]
    """The name that users type: that of an entry point, or FILE.py:FUNCTION."""
    items: ClassVar[Sequence[RewardItem]]
    """Completions, at least two of which have different values."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Settings of rewards, such as `reward_options` and `reward_timeout` in seconds."""

    def test_columns_are_declared(self) -> None:
        """`wants` names columns that every row has."""
        with _in_one_sentence():
            selected = select_rewards([self.reward], self._options())
            for item in self.items:
                check_columns(selected, item.columns)

    def test_values_are_numbers_or_none(self) -> None:
        """No call raises, is late, crashes, or returns anything else."""
        self._values(self.items)

    def test_completions_have_different_values(self) -> None:
        """A reward that returns one value for everything teaches nothing."""
        values = self._values(self.items)
        if len(set(values)) < 2:
            _fail(f"all {len(values)} completions have the value {values[0]}; pass `items` that differ")

    def test_values_are_the_same_alone(self) -> None:
        """The value of a completion does not depend on those that are scored with it."""
        together = self._values(self.items)
        alone = [value for item in self.items for value in self._values([item])]
        _compare(together, alone, ("together with the others", "alone"), "a mean or a rank of all completions?")

    def test_order_is_kept(self) -> None:
        """Values are returned in the order of the completions."""
        forward, backward = self._values(self.items), self._values(list(reversed(self.items)))[::-1]
        reordered = sorted(map(str, forward)) == sorted(map(str, backward))
        cause = "sorted values, or a set of completions?" if reordered else "an index in the batch?"
        _compare(forward, backward, ("in order", "in reverse order"), cause)

    def test_values_repeat(self) -> None:
        """A process that has scored completions scores them again with the same values."""
        with self._pool() as pool:
            first, second = (self._scored(pool, self.items) for _ in range(2))
        _compare(first, second, ("the first time", "the second time"), "random numbers, or state of earlier calls?")

    def test_items_stay_unchanged(self) -> None:
        """A reward leaves its items alone: in the training process other rewards read the same ones."""
        with _in_one_sentence():
            (selected,) = select_rewards([self.reward], self._options())
            reward = selected.reward or load_reward(selected.described)
        for index, item in enumerate(self.items):
            before = asdict(item)  # a copy
            reward.score([item])
            for name, value in before.items():
                if (after := asdict(item)[name]) != value:
                    _fail(f"score changes {name} of completion {index}: {_brief(value)} became {_brief(after)}")

    def _options(self) -> RewardOptions:
        limits = {"reward_workers": 1, "reward_retries": 0, "reward_max_failed": 1.0}
        return RewardOptions.model_validate({**limits, "reward_funcs": (self.reward,), **self.options})

    def _pool(self) -> RewardPool:
        options = self._options()
        with _in_one_sentence():
            return RewardPool(select_rewards([self.reward], options), options)

    def _values(self, items: Sequence[RewardItem]) -> Values:
        with self._pool() as pool:
            return self._scored(pool, items)

    def _scored(self, pool: RewardPool, items: Sequence[RewardItem]) -> Values:
        verdicts = [next(iter(each.values())) for each in pool.score(items)]
        for index, verdict in enumerate(verdicts):
            if verdict.failure is not None:
                _fail(f"the reward {self.reward!r} failed for completion {index}: {verdict.failure.rstrip('.')}")
        return [verdict.value for verdict in verdicts]


class EnvironmentConformance:
    """Plays episodes with fixed responses in this process, and compares what the environment observes."""

    environment: ClassVar[str]
    """The name that users type: that of an entry point, or FILE.py:CLASS."""
    starts: ClassVar[Sequence[EpisodeStart]]
    """Beginnings of at least two episodes."""
    responses: ClassVar[Sequence[str]]
    """Responses of the model, turn by turn, until the episode is over."""
    options: ClassVar[Mapping[str, Any]] = {}
    """The environment's own options."""

    def test_columns_are_declared(self) -> None:
        """The class can be made, has `reset` and `step`, and `wants` names columns that every row has."""
        for start in self.starts:
            self._select(start)

    def test_turns_are_observed(self) -> None:
        """`reset` and `step` return what swift reads: messages, a finite reward, and text that fits the response."""
        for start in self.starts:
            for response, seen in zip(self.responses, self._played(HostedEpisodes(), start)[1:], strict=False):
                if (keep := seen["keep"]) is not None and (keep > len(response) or not seen["text"]):
                    _fail(f"step keeps {keep} characters of {response!r}; `keep` needs `text` and fits the response")

    def test_messages_are_new(self) -> None:
        """`step` returns what the conversation does not have yet, and `reset` leaves that of the start alone."""
        for start in self.starts:
            seen, host = self._played(HostedEpisodes(), start), HostedEpisodes()
            task, row = (self._task(start, "alone", 0) for _ in range(2))
            host.reply(task, lambda: None)
            self._reply(host, start, "alone", 1)
            if seen[0] is None and task["start"]["messages"] != row["start"]["messages"]:
                _fail("start.messages are changed, which the model does not see; return messages from `reset` instead")
            before = row["start"]["messages"] if seen[0] is None else seen[0]
            for response, observation in zip(self.responses, seen[1:], strict=False):
                messages = observation["messages"]
                if before and len(messages) > len(before) and messages[: len(before)] == before:
                    _fail(f"step returns earlier messages again after {response!r}; return only those that are new")
                if any(each.get("role") == "assistant" and each.get("content") == response for each in messages):
                    _fail(f"step returns the completion {response!r} as a message; the conversation has it already")
                before = messages

    def test_same_seed_is_the_same_episode(self) -> None:
        """An episode is a function of its start and of the responses, also in another process."""
        for start in self.starts:
            one, other = (self._played(HostedEpisodes(), start) for _ in range(2))
            remedy = "take everything random from start.seed, and keep the state of an episode in `self`"
            self._compare(start, one, other, "another time", remedy)

    def test_episodes_are_independent(self) -> None:
        """Episodes that alternate in one process observe what they observe alone."""
        host = HostedEpisodes()
        together: list[list[Any]] = [[] for _ in self.starts]
        for turn in range(len(self.responses) + 1):
            for index, start in enumerate(self.starts):
                if turn < 2 or not together[index][-1]["done"]:
                    together[index].append(self._reply(host, start, str(index), turn))
        for start, seen in zip(self.starts, together, strict=True):
            alone = self._played(HostedEpisodes(), start)
            self._compare(start, alone, seen, "with other episodes", "keep the state of an episode in `self`")

    def test_episodes_are_closed(self) -> None:
        """`close` neither raises nor takes longer than it may."""
        host = HostedEpisodes()
        self._reply(host, self.starts[0], "0", 0)
        host.close(["0"], 60.0)
        closing = host.reply(self._task(self.starts[0], "1", 0), lambda: None).get("closing")
        if closing:
            _fail(f"close failed: {closing[0].rstrip('.')}")

    @cached_property
    def _described(self) -> Mapping[str, Any]:
        return self._select(self.starts[0])

    def _select(self, start: EpisodeStart) -> Mapping[str, Any]:
        settings = {"environment": self.environment, "environment_options": self.options}
        with _in_one_sentence():
            selected = select_environment(OnlineOptions.model_validate(settings), start.columns, Path())
        assert selected is not None
        return selected

    def _task(self, start: EpisodeStart, key: str, turns: int) -> dict[str, Any]:
        turns_so_far = [asdict(_turn(text, number)) for number, text in enumerate(self.responses[:turns], start=1)]
        as_sent = json.loads(json.dumps(asdict(start)))
        return {"key": key, "environment": self._described, "start": as_sent, "turns": turns_so_far}

    def _reply(self, host: HostedEpisodes, start: EpisodeStart, key: str, turns: int) -> Any:
        reply = host.reply(self._task(start, key, turns), lambda: None)
        if "failure" in reply:
            after = f" after {self.responses[turns - 1]!r}" if turns else ""
            _fail(f"the environment {self.environment!r} failed{after}: {reply['failure'].rstrip('.')}")
        return reply["observation"] if turns else reply["first"]

    def _played(self, host: HostedEpisodes, start: EpisodeStart) -> list[Any]:
        """Return what reset returned, and the observation of each turn until the episode is over."""
        seen = []
        for turns in range(len(self.responses) + 1):
            seen.append(self._reply(host, start, "alone", turns))
            if turns and seen[-1]["done"]:
                break
        return seen

    def _compare(self, start: EpisodeStart, one: Sequence[Any], other: Sequence[Any], when: str, remedy: str) -> None:
        for turn, (first, second) in enumerate(zip(one, other, strict=False)):
            if first != second:
                what = f"the response of turn {turn}" if turn else "reset"
                _fail(f"{what} (seed {start.seed}) gives {_brief(first)}, and {when} {_brief(second)}; {remedy}")
        if len(one) != len(other):
            _fail(f"an episode (seed {start.seed}) has {len(one) - 1} turns, and {when} {len(other) - 1}; {remedy}")


def _turn(text: str, number: int) -> Turn:
    calls = [{"name": name, "arguments": arguments} for name, arguments in calls_in(text) or ()]
    return Turn(text, number, tool_calls=calls)


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    """Fail with the message of an error for users, without a traceback."""
    try:
        yield
    except SwiftError as error:
        _fail(error.message.rstrip("."))


def _compare(ones: Values, others: Values, how: tuple[str, str], cause: str) -> None:
    for index, (one, other) in enumerate(zip(ones, others, strict=True)):
        if one != other:
            _fail(f"completion {index} has the value {one} {how[0]}, and {other} {how[1]}: {cause}")


def _brief(seen: Any) -> str:
    text = repr({name: value for name, value in seen.items() if value} if isinstance(seen, dict) else seen)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _fail(sentence: str) -> None:
    pytest.fail(f"{sentence[0].upper()}{sentence[1:]}.", pytrace=False)
