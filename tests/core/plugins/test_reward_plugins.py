"""A reward is a class with `score`, or a function; whatever else it declares has the right type."""

from __future__ import annotations

from typing import Any

import pytest

from swift.errors import PluginError
from swift.plugins.entry import PluginEntry
from swift.plugins.kinds import KINDS

ENTRY = PluginEntry("swift.rewards", "mine", "acme-rewards", "1.0", "acme:Mine")


class Mine:
    def score(self, items: Any) -> list[float]:
        return [1.0] * len(items)


def fault_of(reward: Any) -> str | None:
    try:
        KINDS["swift.rewards"].check(ENTRY, reward)
    except PluginError as fault:
        return fault.message
    return None


def test_a_class_with_score_and_a_function_are_rewards() -> None:
    assert fault_of(Mine) is None
    assert fault_of(lambda completions: [1.0]) is None


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (3, "neither a class nor a function"),
        (type("Empty", (), {}), "lacks score"),
        (type("Wants", (Mine,), {"wants": "solution"}), "wants 'solution'"),
        (type("Lonely", (Mine,), {"isolation": "thread"}), "has the isolation 'thread'"),
        (type("Batch", (Mine,), {"batched": "yes"}), "'yes' of whether it takes all answers at once"),
        (type("Options", (Mine,), {"options_model": dict}), "as its options_model"),
    ],
)
def test_what_is_no_reward_is_refused_by_name(reward: Any, says: str) -> None:
    fault = str(fault_of(reward))
    assert fault.startswith("reward 'mine' (acme-rewards 1.0)")
    assert says in fault
