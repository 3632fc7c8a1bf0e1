"""The conformance kits of rewards and environments pass correct plugins, and name the fault of broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swift.contracts import EpisodeStart, RewardItem
from swift_rl.testing import EnvironmentConformance, RewardConformance

REWARDS = """
import random
import time


def length(completions, **columns):
    return [None if text == "none" else float(len(text)) for text in completions]


async def later(completions, **columns):
    return [float(len(text)) for text in completions]


def against_the_mean(completions, **columns):
    mean = sum(map(len, completions)) / len(completions)
    return [len(text) - mean for text in completions]


against_the_mean.batched = True


def longest_last(completions, **columns):
    return sorted(float(len(text)) for text in completions)


longest_last.batched = True


def named(completions, **columns):
    return [text for text in completions]


def strict(completions, **columns):
    raise KeyError("solution")


def slow(completions, **columns):
    time.sleep(60)


def constant(completions, **columns):
    return [1.0] * len(completions)


SEEN = []


def remembers(completions, **columns):
    SEEN.extend(completions)
    return [float(len(text) + SEEN.count(text)) for text in completions]


def counts_from_first(completions, **columns):
    return [len(text) - 0.1 * index for index, text in enumerate(completions)]


counts_from_first.batched = True


def unseeded(completions, **columns):
    return [random.random() for text in completions]


def nan(completions, **columns):
    return [float("nan") for text in completions]


def one_too_many(completions, **columns):
    return [0.0] * (len(completions) + 1)


def consumes(completions, solution, **columns):
    return [float(solution[0].pop() == text) for text in completions]
"""
ENVIRONMENTS = """
import random

from swift.contracts import Observation


class Game:
    def reset(self, start):
        self.number = random.Random(start.seed).randrange(1000)
        self.turns = 0

    def step(self, turn):
        self.turns += 1
        return Observation([{"role": "user", "content": f"{self.number} {self.turns}"}], 0.5, done=self.turns == 2)


class Later(Game):
    async def step(self, turn):
        return Game.step(self, turn)


class Unseeded(Game):
    def reset(self, start):
        Game.reset(self, start)
        self.number = random.SystemRandom().random()


class Shared(Game):
    turns = 0

    def reset(self, start):
        Game.reset(self, start)
        Shared.last = self.number

    def step(self, turn):
        return Observation([{"role": "user", "content": str(Shared.last)}], 0.5)


class Counts(Game):
    played = []

    def reset(self, start):
        Game.reset(self, start)
        self.played.append(start.seed)

    def step(self, turn):
        return Observation([{"role": "user", "content": f"game {len(self.played)}"}], 0.5)


class Mutates(Game):
    def reset(self, start):
        Game.reset(self, start)
        start.messages.append({"role": "user", "content": "Guess."})


class Repeats(Game):
    def reset(self, start):
        Game.reset(self, start)
        self.messages = []

    def step(self, turn):
        self.messages.append({"role": "user", "content": "higher"})
        return Observation(self.messages, 0.5)


class Echoes(Game):
    def step(self, turn):
        reply = {"role": "user", "content": "higher"}
        return Observation([{"role": "assistant", "content": turn.text}, reply], 0.5)


class OfEachToken(Game):
    def step(self, turn):
        return Observation([{"role": "user", "content": "higher"}], [0.5, 0.5])


class Mapping(Game):
    def step(self, turn):
        return {"reward": 1.0}


class Keeps(Game):
    def step(self, turn):
        return Observation(text=" more", keep=100)


class Unclosed(Game):
    def close(self):
        raise OSError("still open")


class Needs(Game):
    wants = ("solution",)
"""


def failure(kit: Any, test: str) -> str | None:
    """Return the sentence with which a test of a kit fails; None where it passes."""
    try:
        getattr(kit, test)()
    except pytest.fail.Exception as failed:
        return str(failed.msg)
    return None


def names_of(kit: type) -> list[str]:
    return [name for name in dir(kit) if name.startswith("test_")]


def reward(folder: Path, name: str) -> RewardConformance:
    file = folder / "rewards.py"
    file.write_text(REWARDS)

    class Kit(RewardConformance):
        reward = f"{file}:{name}"
        items = tuple(
            RewardItem(({"role": "user", "content": "?"},), text, columns={"solution": ["one"]})
            for text in ("one", "seventeen", "none")
        )
        options = {"reward_timeout": 2.0}  # noqa: RUF012

    return Kit()


def environment(folder: Path, name: str) -> EnvironmentConformance:
    file = folder / "environments.py"
    file.write_text(ENVIRONMENTS)

    class Kit(EnvironmentConformance):
        environment = f"{file}:{name}"
        starts = tuple(EpisodeStart(({"role": "user", "content": "?"},), seed=seed) for seed in (1, 2))
        responses = ("first", "second", "third")

    return Kit()


@pytest.mark.parametrize("name", ["length", "later"])
def test_correct_reward_passes_its_kit(tmp_path: Path, name: str) -> None:
    kit = reward(tmp_path, name)
    assert {test: failure(kit, test) for test in names_of(RewardConformance)} == dict.fromkeys(
        names_of(RewardConformance)
    )


@pytest.mark.parametrize(
    ("name", "test", "sentence"),
    [
        ("against_the_mean", "test_values_are_the_same_alone", "together with the others, and 0.0 alone"),
        ("longest_last", "test_order_is_kept", "3.0 in order, and 9.0 in reverse order: sorted values"),
        ("counts_from_first", "test_order_is_kept", "in order, and 2.8 in reverse order: an index in the batch?"),
        ("unseeded", "test_values_repeat", ": random numbers, or state of earlier calls?"),
        (
            "consumes",
            "test_items_stay_unchanged",
            "changes columns of completion 0: {'solution': ['one']} became",
        ),
        ("named", "test_values_are_numbers_or_none", "returned 'one', expected a finite number"),
        ("nan", "test_values_are_numbers_or_none", "returned nan, expected a finite number"),
        ("one_too_many", "test_values_are_numbers_or_none", "returned 2 values for 1 completions"),
        ("strict", "test_values_are_numbers_or_none", "KeyError: 'solution'"),
        ("slow", "test_values_are_numbers_or_none", "took longer than 2 s"),
        ("constant", "test_completions_have_different_values", "All 3 completions have the value 1.0"),
        ("remembers", "test_values_repeat", "the first time, and 5.0 the second time"),
        ("missing", "test_columns_are_declared", "missing"),
    ],
)
def test_kit_names_the_fault_of_a_reward(tmp_path: Path, name: str, test: str, sentence: str) -> None:
    said = failure(reward(tmp_path, name), test)
    assert said is not None
    assert sentence in said
    assert "\n" not in said


@pytest.mark.parametrize("name", ["Game", "Later"])
def test_correct_environment_passes_its_kit(tmp_path: Path, name: str) -> None:
    kit = environment(tmp_path, name)
    assert {test: failure(kit, test) for test in names_of(EnvironmentConformance)} == dict.fromkeys(
        names_of(EnvironmentConformance)
    )


@pytest.mark.parametrize(
    ("name", "test", "sentence"),
    [
        ("Unseeded", "test_same_seed_is_the_same_episode", "take everything random from start.seed"),
        ("Shared", "test_episodes_are_independent", "keep the state of an episode in `self`"),
        ("Counts", "test_same_seed_is_the_same_episode", "keep the state of an episode in `self`"),
        ("Mutates", "test_messages_are_new", "Start.messages are changed, which the model does not see"),
        ("Repeats", "test_messages_are_new", "Step returns earlier messages again after 'second'"),
        ("Echoes", "test_messages_are_new", "Step returns the completion 'first' as a message"),
        ("OfEachToken", "test_turns_are_observed", "the reward [0.5, 0.5]. Expected: a finite number"),
        ("Mapping", "test_turns_are_observed", "step returned dict. Expected: swift.contracts.Observation"),
        ("Keeps", "test_turns_are_observed", "Step keeps 100 characters of 'first'"),
        ("Unclosed", "test_episodes_are_closed", "Close failed: OSError: still open"),
        ("Needs", "test_columns_are_declared", "needs the column 'solution'"),
        ("Missing", "test_columns_are_declared", "Missing"),
    ],
)
def test_kit_names_the_fault_of_an_environment(tmp_path: Path, name: str, test: str, sentence: str) -> None:
    said = failure(environment(tmp_path, name), test)
    assert said is not None
    assert sentence in said
    assert "\n" not in said
