"""Finding, checking and running plugins. Importing this package imports neither torch nor any plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swift.plugins.load import LoadedPlugin

__all__ = ["load_plugin", "plugin_names"]


def load_plugin(group: str, name: str) -> LoadedPlugin:
    """Return the installed plugin of a kind, such as `swift.rewards`, and a name; raise `PluginError` without one."""
    from swift.plugins.load import find, load

    return load(find(group, name))


def plugin_names(group: str) -> list[str]:
    """Return the names of the installed plugins of a kind that may be used, without importing them."""
    from swift.plugins.discover import list_plugins

    return sorted({entry.name for entry in list_plugins(group) if entry.allowed})
