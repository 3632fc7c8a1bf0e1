"""Several runs beside each other: the settings that differ, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_NAMES_OF_ITSELF = frozenset({"logging.output", "logging.run_name", "checkpoint.resume"})
"""Settings that say where a run lies, and nothing of what it does."""


def differences(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the keys whose values are not the same in all runs, with a value for each run (None where it has none)."""
    names = sorted({name for each in settings for name in each} - _NAMES_OF_ITSELF)
    rows = ({"key": name, "values": [each.get(name) for each in settings]} for name in names)
    return [row for row in rows if any(value != row["values"][0] for value in row["values"][1:])]
