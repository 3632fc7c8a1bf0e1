"""Defaults of other sections that an objective brings (`Objective.defaults`), where the user sets none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swift.config.draft import Assignment
from swift.config.fields import core_keys

if TYPE_CHECKING:
    from swift.plugins.load import LoadedPlugin


def set_defaults(
    merged: dict[str, Assignment], objective: LoadedPlugin, selected: Mapping[str, LoadedPlugin]
) -> list[str]:
    """Set what an objective wants where nothing else does, and return a line for each key that it sets.

    `selected` are the plugins of open sections by section: an option that the selected one lacks is left out.
    """
    defaults: Mapping[str, tuple[Any, str]] = objective.object.defaults
    notes = []
    for key, (value, reason) in defaults.items():
        if _is_set(merged, key) or not _exists(key, selected):
            continue
        merged[key] = Assignment(value, f"the {objective.entry.kind} {objective.entry.name!r}")
        notes.append(f"{objective.entry.name} sets {key} {value}, unless you set it: {reason}.")
    return notes


def _is_set(merged: Mapping[str, Assignment], key: str) -> bool:
    """Return whether a key, a mapping around it, or something in it is set."""
    return any(key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in merged)


def _exists(key: str, selected: Mapping[str, LoadedPlugin]) -> bool:
    section, _, name = key.partition(".")
    plugin = selected.get(section)
    if plugin is None or name in core_keys(section):
        return True
    return plugin.config_model is not None and name in plugin.config_model.model_fields
