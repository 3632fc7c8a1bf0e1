"""An installed plugin, as the metadata of its distribution describes it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from swift.installation import CORE as CORE

GROUPS = (
    "swift.backends",
    "swift.exporters",
    "swift.engines",
    "swift.objectives",
    "swift.observers",
    "swift.optimizers",
    "swift.tuners",
    "swift.rewards",
    "swift.environments",
    "swift.planners",
    "swift.commands",
    "swift.vocabularies",
)
"""Groups of entry points, in the order in which kinds of plugins are listed: the keys of `swift.plugins.kinds.KINDS`,
which need more imports than finding plugins does."""
_PINNED = re.compile(rf"{CORE}(==[\d.]+)")


@dataclass(frozen=True)
class PluginEntry:
    """One entry point, as the metadata of its distribution describes it."""

    group: str
    name: str
    distribution: str
    """Empty for a class in a Python file (`swift.plugins.python_files`)."""
    version: str
    target: str
    """`module:attribute`."""
    requirements: tuple[str, ...] = ()
    """Of its distribution, as pip reads them."""
    problem: str | None = None
    """What is wrong with its metadata, as a sentence that follows the plugin's name."""
    allowed: bool = True
    """False when SWIFT_PLUGINS leaves it out."""

    @cached_property
    def requires_core(self) -> str | None:
        """The versions of swift-core that the distribution requires, such as '>=0.1,<0.2'. Reading them takes long."""
        return None if normal_name(self.distribution) == CORE else _requires_core(self.requirements)

    @property
    def kind(self) -> str:
        """Return 'backend', 'exporter', ...: the kind's name, which its group has in the plural."""
        return re.sub("ies$", "y", self.group.removeprefix("swift.")).removesuffix("s")

    @property
    def title(self) -> str:
        """Return the kind and the name: "backend 'torch'"."""
        return f"{self.kind} {self.name!r}"

    def __str__(self) -> str:
        source = f" ({self.distribution} {self.version})" if self.distribution else ""
        return f"{self.title}{source}"


def printable(text: str) -> str:
    """Escape control characters of a terminal, such as colours and a cleared screen."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def normal_name(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).strip().lower()


def _requires_core(requirements: Iterable[str]) -> str | None:
    on_core = [text for text in requirements if normal_name(text).startswith(CORE)]
    if len(on_core) == 1 and (pinned := _PINNED.fullmatch(on_core[0])):
        return pinned[1]  # as this project's packages do; reading other requirements takes long
    from packaging.requirements import InvalidRequirement, Requirement

    specifiers = []
    for text in on_core:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # pip refuses such a distribution: it was installed in another way
        try:
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        except (ValueError, KeyError):  # a marker about something that this Python does not know
            continue
        if normal_name(requirement.name) == CORE and applies:
            specifiers.append(str(requirement.specifier))
    return ",".join(filter(None, specifiers)) or None
