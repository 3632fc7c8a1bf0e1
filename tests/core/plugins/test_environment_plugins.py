"""An environment is a class with `reset` and `step`; whatever else it declares has the right type."""

from __future__ import annotations

from typing import Any

import pytest

from swift.errors import PluginError
from swift.plugins.entry import PluginEntry
from swift.plugins.kinds import KINDS

ENTRY = PluginEntry("swift.environments", "mine", "acme-games", "1.0", "acme:Mine")


class Mine:
    def reset(self, start: Any) -> None:
        """Begin."""

    def step(self, turn: Any) -> Any:
        """Go on."""


def fault_of(environment: Any) -> str | None:
    try:
        KINDS["swift.environments"].check(ENTRY, environment)
    except PluginError as fault:
        return fault.message
    return None


def test_a_class_with_reset_and_step_is_an_environment() -> None:
    assert fault_of(Mine) is None


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (Mine(), "is no class"),
        (type("Empty", (), {"step": Mine.step}), "lacks reset"),
        (type("Wants", (Mine,), {"wants": "board"}), "wants 'board'"),
        (type("Options", (Mine,), {"options_model": dict}), "as its options_model"),
    ],
)
def test_what_is_no_environment_is_refused_by_name(environment: Any, says: str) -> None:
    fault = str(fault_of(environment))
    assert fault.startswith("environment 'mine' (acme-games 1.0)")
    assert says in fault
