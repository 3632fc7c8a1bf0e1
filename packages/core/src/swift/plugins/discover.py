"""What is installed, read from entry points in metadata.

Nothing is imported, so that listing cannot fail on a broken plugin.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path

CORE = "swift-core"
KINDS = {
    "swift.backends": "backend",
    "swift.exporters": "exporter",
    "swift.engines": "engine",
    "swift.objectives": "objective",
    "swift.observers": "observer",
}
"""Entry-point group → what a plugin of that group is called."""

ALLOW_LIST = "SWIFT_PLUGINS"
"""Environment variable: names or distributions, comma separated, that may be loaded beside those of swift-core."""


@dataclass(frozen=True)
class PluginEntry:
    """One entry point, as its distribution's metadata tells it."""

    group: str
    name: str
    distribution: str
    version: str
    target: str
    """`module:attribute`."""
    requires_core: str | None
    """The versions of swift-core that the distribution asks for, such as '>=0.1,<0.2'."""
    allowed: bool = True
    """False when SWIFT_PLUGINS leaves it out."""

    @property
    def kind(self) -> str:
        """'backend', 'exporter', 'engine', 'objective' or 'observer'."""
        return KINDS[self.group]

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} ({self.distribution} {self.version})"


def list_plugins(group: str | None = None) -> list[PluginEntry]:
    """All plugins installed (of one group), by kind and name. Reads metadata, imports nothing."""
    allow_list = _allow_list()
    return [
        replace(entry, allowed=_is_allowed(entry, allow_list))
        for entry in _installed(tuple((path, _changed(path)) for path in sys.path))
        if group in (None, entry.group)
    ]


def duplicates(entries: Iterable[PluginEntry]) -> dict[tuple[str, str], list[PluginEntry]]:
    """(group, name) → the allowed entries that share it, where there are several."""
    shared: dict[tuple[str, str], list[PluginEntry]] = {}
    for entry in entries:
        if entry.allowed:
            shared.setdefault((entry.group, entry.name), []).append(entry)
    return {key: rivals for key, rivals in shared.items() if len(rivals) > 1}


@lru_cache(maxsize=4)
def _installed(_path: tuple[tuple[str, int], ...]) -> tuple[PluginEntry, ...]:
    """What the metadata of all distributions says; read anew when something was installed beside them."""
    points = metadata.entry_points()
    return tuple(
        entry
        for group in KINDS
        for entry in sorted(
            (_entry(point) for point in points.select(group=group) if point.dist is not None),
            key=lambda entry: (entry.name, entry.distribution),
        )
    )


def _changed(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def _entry(point: metadata.EntryPoint) -> PluginEntry:
    distribution = point.dist
    assert distribution is not None
    return PluginEntry(
        group=point.group,
        name=point.name,
        distribution=distribution.metadata["Name"] or "unknown",
        version=distribution.metadata["Version"] or "unknown",
        target=point.value,
        requires_core=_requires_core(distribution.requires or []),
    )


def _is_allowed(entry: PluginEntry, allow_list: frozenset[str] | None) -> bool:
    distribution = _normal(entry.distribution)
    return allow_list is None or distribution == CORE or bool({_normal(entry.name), distribution} & allow_list)


def _allow_list() -> frozenset[str] | None:
    value = os.environ.get(ALLOW_LIST)
    if value is None:
        return None
    return frozenset(_normal(item) for item in value.split(",") if item.strip())


def _requires_core(requirements: Iterable[str]) -> str | None:
    from packaging.requirements import InvalidRequirement, Requirement

    specifiers = []
    for text in requirements:
        if not _normal(text).startswith(CORE):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # pip refuses such a distribution: it was installed in another way
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if _normal(requirement.name) == CORE and applies:
            specifiers.append(str(requirement.specifier))
    return ",".join(filter(None, specifiers)) or None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).strip().lower()
