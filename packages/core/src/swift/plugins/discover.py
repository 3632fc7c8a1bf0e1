"""Finds installed plugins, read from entry points in metadata.

Nothing is imported, so that listing cannot fail on a broken plugin.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib import metadata

from swift.plugins.entry import CORE, GROUPS, PluginEntry, normal_name, printable
from swift.plugins.known import KNOWN

ALLOW_LIST = "SWIFT_PLUGINS"
"""Environment variable.

Names or distributions, comma separated, that may be loaded in addition to those of swift-core.
"""


_SCRIPTS = "console_scripts"
_NAME = re.compile(r"\w[\w.+-]*")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\s*(:\s*[^\W\d]\w*(\.[^\W\d]\w*)*)?\s*(\[.*\])?")
"""`package.module:attribute.of.it`, perhaps with extras."""


def list_plugins(group: str | None = None) -> list[PluginEntry]:
    """All plugins installed (of one group), by kind and name. Reads metadata, imports nothing."""
    listed = _listed(_path(), _allow_list())
    return [entry for entry in listed if group in (None, entry.group)]


def allowed_plugins(group: str) -> list[PluginEntry]:
    """Return the installed plugins of a kind, such as `swift.rewards`, that may be used; reads metadata alone."""
    return [entry for entry in list_plugins(group) if entry.allowed]


def only_installed(group: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the names whose plugins are installed and allowed."""
    installed = plugin_names(group)
    return tuple(name for name in names if name in installed)


def plugin_names(group: str) -> list[str]:
    """Return the names of the installed plugins of a kind that may be used, without importing them."""
    return sorted({entry.name for entry in allowed_plugins(group)})


def objective_names() -> tuple[str, ...]:
    """Return the names of objectives: of this project's, installed or not, and of the others that are installed."""
    return tuple(dict.fromkeys((*plugin_names("swift.objectives"), *KNOWN["swift.objectives"])))


def conflicting_distributions() -> list[str]:
    """Return other distributions that have a script of this name, or one that runs a module of `swift`.

    Costs nothing, since entry points are read for plugins; `swift.installation.conflicts` reads what is installed.
    """
    found = {entry.distribution for entry in _installed(_path()) if entry.group == _SCRIPTS}
    return sorted(found - {CORE})


def duplicates(entries: Iterable[PluginEntry]) -> dict[tuple[str, str], list[PluginEntry]]:
    """(group, name) → the allowed entries that share it, where there are several."""
    shared: dict[tuple[str, str], list[PluginEntry]] = {}
    for entry in entries:
        if entry.allowed:
            shared.setdefault((entry.group, entry.name), []).append(entry)
    return {key: rivals for key, rivals in shared.items() if len(rivals) > 1}


@lru_cache(maxsize=8)
def _listed(path: tuple[tuple[str, int], ...], allow_list: frozenset[str] | None) -> tuple[PluginEntry, ...]:
    """Return all plugins, with those marked that may not be loaded."""
    plugins = (entry for entry in _installed(path) if entry.group != _SCRIPTS)
    return tuple(replace(entry, allowed=_is_allowed(entry, allow_list)) for entry in plugins)


@lru_cache(maxsize=4)
def _installed(_path: tuple[tuple[str, int], ...]) -> tuple[PluginEntry, ...]:
    """Return the plugins of all distributions, and scripts that concern swift; read again after an installation."""
    points = _entry_points()
    return tuple(
        entry
        for group in (*GROUPS, _SCRIPTS)
        for entry in sorted(
            (_entry(point) for point in points if point.group == group and point.dist is not None),
            key=lambda entry: (entry.name, entry.distribution),
        )
    )


def _entry_points() -> Iterable[metadata.EntryPoint]:
    """Those of plugins and scripts; where one distribution's file cannot be read, those of all others."""
    try:
        installed = metadata.entry_points()
        points = [point for group in (*GROUPS, _SCRIPTS) for point in installed.select(group=group)]
    except Exception:  # the parser raises what the damaged file makes it raise
        found: dict[str, Iterable[metadata.EntryPoint]] = {}
        for distribution in metadata.distributions():
            with suppress(Exception):
                name = normal_name(distribution.metadata["Name"])
                if name not in found:  # what comes first on the path is what is imported
                    found[name] = distribution.entry_points
        points = [point for of_one in found.values() for point in of_one]
    return [
        point
        for point in points
        if point.group != _SCRIPTS or point.name == "swift" or point.value.startswith("swift.")
    ]


def _path() -> tuple[tuple[str, int], ...]:
    """Return where Python looks for distributions, and when each folder changed."""
    return tuple((path, _changed(path)) for path in sys.path)


def _changed(path: str) -> int:
    try:
        return os.stat(path or ".").st_mtime_ns  # noqa: PTH116 - called for the whole path whenever a plugin is selected
    except OSError:
        return 0


def _entry(point: metadata.EntryPoint) -> PluginEntry:
    assert point.dist is not None
    name, version, requirements = _facts(point.dist)
    return PluginEntry(
        group=point.group,
        name=point.name,
        distribution=printable(name),
        version=printable(version),
        target=point.value,
        requirements=requirements,
        problem=_problem(point),
    )


@lru_cache(maxsize=64)
def _facts(distribution: metadata.Distribution) -> tuple[str, str, tuple[str, ...]]:
    """Return name, version and requirements of a distribution, read once for all its plugins."""
    name, version, requirements = "unknown", "unknown", list[str]()
    with suppress(Exception):  # metadata that is missing or damaged
        name = distribution.metadata["Name"] or name
        version = distribution.metadata["Version"] or version
        requirements = distribution.requires or requirements
    return name, version, tuple(requirements)


def _problem(point: metadata.EntryPoint) -> str | None:
    """Return what is wrong with a name, which becomes part of flags, or with a target, which is to be imported."""
    if not _NAME.fullmatch(point.name):
        return "has a name that cannot be typed: use letters, digits, '-', '_', '.' and '+'"
    if not _TARGET.fullmatch(point.value.strip()):
        return f"has the entry point {point.value!r}, which is not module:attribute"
    return None


def _is_allowed(entry: PluginEntry, allow_list: frozenset[str] | None) -> bool:
    distribution = normal_name(entry.distribution)
    return allow_list is None or distribution == CORE or bool({normal_name(entry.name), distribution} & allow_list)


def _allow_list() -> frozenset[str] | None:
    value = os.environ.get(ALLOW_LIST)
    if value is None:
        return None
    return frozenset(normal_name(item) for item in value.split(",") if item.strip())
