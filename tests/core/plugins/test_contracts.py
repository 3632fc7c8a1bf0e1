"""Members of rewards, environments, tuners and others are checked against the types in `swift.contracts`."""

from __future__ import annotations

from typing import Any

import pytest

from swift.errors import PluginError
from swift.plugins.entry import PluginEntry
from swift.plugins.kinds import KINDS
from swift_testing.third_party import EverySecond, Momentum


class Game:
    def reset(self, start: Any) -> None:
        """Begin."""

    def step(self, turn: Any) -> Any:
        """Continue."""


class Scorer:
    def score(self, items: Any) -> list[float]:
        return [1.0] * len(items)


GOOD = {
    "environments": [Game],
    "rewards": [Scorer, lambda completions: [1.0]],
    "optimizers": [Momentum()],
    "tuners": [EverySecond()],
}


def fault_of(group: str, plugin: Any) -> str | None:
    kind = KINDS[f"swift.{group}"]
    try:
        kind.check(PluginEntry(f"swift.{group}", "mine", "acme-games", "1.0", "acme:Mine"), plugin)
    except PluginError as fault:
        return str(fault)
    return None


@pytest.mark.parametrize("group", GOOD)
def test_plugin_with_all_members_passes(group: str) -> None:
    assert [fault_of(group, plugin) for plugin in GOOD[group]] == [None] * len(GOOD[group])


@pytest.mark.parametrize(
    ("group", "plugin", "message"),
    [
        ("environments", Game(), "names a Game"),
        ("environments", type("Empty", (), {"step": Game.step}), "lacks reset"),
        ("environments", type("Wants", (Game,), {"wants": "board"}), "declares wants as the str 'board'"),
        ("environments", type("Options", (Game,), {"options_model": dict}), "options_model as the class dict"),
        ("rewards", 3, "names the int 3"),
        ("rewards", type("Empty", (), {}), "lacks score"),
        ("rewards", type("Isolated", (Scorer,), {"isolation": "thread"}), "Expected: 'process' or 'inline'"),
        ("rewards", type("Batch", (Scorer,), {"batched": "yes"}), "declares batched as the str 'yes'"),
        ("optimizers", type("Reads", (Momentum,), {"reads": "all"})(), "declares reads as the str 'all'"),
        ("optimizers", type("Slots", (Momentum,), {"slots": ("exp_avg",)})(), "declares slots[0] as the str"),
        ("tuners", type("Adapter", (EverySecond,), {"adapter": "yes"})(), "declares adapter as the str 'yes'"),
        ("planners", object(), "lacks choose"),
        ("vocabularies", object(), "Name a subclass of swift.contracts.Vocabulary"),
    ],
)
def test_wrong_member_names_plugin_and_type(group: str, plugin: Any, message: str) -> None:
    fault = str(fault_of(group, plugin))
    assert fault.startswith(f"{KINDS[f'swift.{group}'].name} 'mine' (acme-games 1.0)")
    assert message in fault
