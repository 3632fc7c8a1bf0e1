"""Defaults that an objective sets in other sections (`Objective.defaults`) where the user sets none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swift.config.draft import Draft
from swift.config.fields import core_keys

if TYPE_CHECKING:
    from swift.plugins.load import LoadedPlugin


def set_defaults(draft: Draft, objective: LoadedPlugin, selected: Mapping[str, LoadedPlugin]) -> None:
    """Set an objective's defaults for keys that are not set, with a note for each.

    `selected` maps open sections to their plugins: options that the selected plugin lacks are skipped.
    """
    defaults: Mapping[str, tuple[Any, str]] = objective.object.defaults
    for key, (value, reason) in defaults.items():
        if _is_set(draft, key) or not _exists(key, selected):
            continue
        draft.replace(key, value, f"the {objective.entry.kind} {objective.entry.name!r}")
        draft.note(f"The objective {objective.entry.name} sets {key} to {value}: {reason}.")


def _is_set(draft: Draft, key: str) -> bool:
    """Return whether a key, a mapping around it, or a key inside it is set."""
    return any(
        key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in draft.assignments
    )


def _exists(key: str, selected: Mapping[str, LoadedPlugin]) -> bool:
    section, _, name = key.partition(".")
    plugin = selected.get(section)
    if plugin is None or name in core_keys(section):
        return True
    return plugin.config_model is not None and name in plugin.config_model.model_fields
