"""A configuration while it is being put together: who set which key to what, before anything is validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swift.config.flags import Flag, FlagTable, Settings, nearest_flag
from swift.config.values import coerce, literal, quoted
from swift.errors import ConfigError
from swift.plugins.known import MIXES

NOTE = "@note"
"""In settings: not a key, but what to tell the user about the flag, as the end of a sentence."""


@dataclass(frozen=True)
class Assignment:
    """One key, its value, and the words that set it."""

    value: Any
    source: str
    """The flag as it was typed, the line of a file, the call."""


class Draft:
    """Assignments of one layer: a file, the flags, or the keywords of a call."""

    def __init__(self, table: FlagTable) -> None:
        self.assignments: dict[str, Assignment] = {}
        self.notes: list[str] = []
        """What the user should hear about flags that set nothing."""
        self._unless_set: dict[str, Assignment] = {}
        self._table = table

    def set(self, key: str, value: Any, source: str) -> None:
        """Set one key; two settings of one layer that disagree are an error."""
        field = self._table.fields.get(key)
        if field is not None:
            value = coerce(field, field.bare if field.bare is not None and value is True else value, source)
        elif self._table.mapping_of(key):
            value = literal(value)
        earlier = self.assignments.get(key)
        if earlier is not None and _text(earlier.value) != _text(value):
            both = frozenset((str(earlier.value), str(value)))
            raise ConfigError(
                f"{earlier.source} and {source} contradict each other: {key.lstrip('@')} cannot be both "
                f"{quoted(earlier.value)} and {quoted(value)}.",
                hint=MIXES.get((key, both), "Keep one of them."),
            )
        self.assignments.setdefault(key, Assignment(value, source))

    def apply(self, settings: Settings, source: str) -> None:
        """Set several keys that one flag stands for."""
        for key, value in settings.items():
            if key == NOTE:
                self.notes.append(f"{source} {value}")
            elif key.startswith("?"):
                self._unless_set[key.removeprefix("?")] = Assignment(value, source)
            else:
                self.set(key, value, source)

    def finish(self) -> None:
        """Set what flags imply where this layer does not set it otherwise."""
        for key, implied in self._unless_set.items():
            if key not in self.assignments:
                self.set(key, implied.value, implied.source)
                self.notes.append(f"{implied.source}: {key} is {implied.value}, unless you set it.")
        self._unless_set.clear()

    def add_flag(self, flag: Flag) -> None:
        """Add one flag of the command line: an alias, or a key. Lists of several names are joined."""
        if flag.arity == "words" or flag.name in self._table.elsewhere_arity:
            self.notes.append(self._table.elsewhere[flag.name].answer(flag.typed, flag.value))
            return
        if flag.arity == "switch" and self._left_open(flag.name, flag.value):
            self.notes.append(f"{flag.typed} {flag.value} sets nothing.")
            return
        alias = self._table.aliases.get(flag.name)
        key = alias.key if alias is not None else flag.name
        earlier = self.assignments.get(key)
        if earlier is not None and flag.arity == "list" and (alias is None or alias.renames):
            self.assignments[key] = Assignment((*earlier.value, *flag.value), flag.typed)
        elif alias is not None:
            self.apply(alias.translate(flag.typed, flag.value), flag.typed)
        else:
            self.set(flag.name, flag.value, flag.typed)

    def add_mapping(self, content: Mapping[str, Any], sources: Mapping[str, str], source: str) -> None:
        """Add a nested mapping: sections by name, and aliases at the top. `sources` has that of a key, where known."""
        sections = self._table.sections
        for name, value in content.items():
            if not isinstance(name, str):
                raise ConfigError(f"{source}: {quoted(name)} is not the name of a section.")
            own = sources.get(name, f"{source} ({name})")
            if name in sections and isinstance(value, Mapping):
                for key, inner in value.items():
                    self._add_key(f"{name}.{key}", inner, sources.get(f"{name}.{key}", f"{source} ({name}.{key})"))
            elif name in sections and value is None:
                continue  # an empty section
            elif name in sections and name not in self._table.aliases:
                raise ConfigError(f"{own}: {name} is a section with keys of its own, not {quoted(value)}.")
            else:
                self._add_key(name, value, own)

    def _add_key(self, name: str, value: Any, source: str) -> None:
        try:
            self._add(name, value, source)
        except ConfigError as error:
            if name.rpartition(".")[2] not in error.message:  # a flag says what it sets, a line of a file does not
                error.message += f" (The key is {name}.)"
            raise

    def _add(self, name: str, value: Any, source: str) -> None:
        table = self._table
        key = name.replace("-", "_")
        alias = table.aliases.get(key)
        if alias is not None and alias.arity == "switch" and self._left_open(key, value):
            return
        if alias is not None:
            self.apply(alias.translate(source, value), source)
        elif key in table.elsewhere:
            if value is not None:
                named = source if name in source else f"{source}: {name}"
                self.notes.append(table.elsewhere[key].answer(named, value))
        elif key in table.fields or key.partition(".")[0] in table.open_sections or table.mapping_of(key):
            self.set(key, value, source)
        else:
            meant = nearest_flag(key, [*table.sections, *table.fields, *table.aliases])
            suggestion = f" Did you mean {meant!r}?" if meant else ""
            raise ConfigError(f"{source}: there is no key {quoted(name)}.{suggestion}")

    def _left_open(self, name: str, value: Any) -> bool:
        """Return whether a switch that cannot be left open is given as `None`, as arguments saved by a program are."""
        alias = self._table.aliases.get(name)
        field = self._table.fields.get(alias.key if alias else name)
        return str(value).lower() in ("none", "null") and not (field is not None and field.optional)


def source_of(assignments: Mapping[str, Assignment], key: str) -> str:
    """Return where a key, something in it, or the nearest mapping around it, was set."""
    inside = next((other for other in assignments if other.startswith(f"{key}.")), None)
    if key not in assignments and inside is not None:
        return assignments[inside].source
    while key and key not in assignments:
        key = key.rpartition(".")[0]
    return assignments[key].source if key else "configuration"


def merge(layers: list[Draft]) -> dict[str, Assignment]:
    """Return the assignments of all layers; later layers outrank earlier ones."""
    merged: dict[str, Assignment] = {}
    for layer in layers:
        for key, assignment in layer.assignments.items():
            # A mapping set as a whole replaces the keys that an earlier layer set inside it.
            for inner in [other for other in merged if other.startswith(f"{key}.")]:
                del merged[inner]
            merged[key] = assignment
    return merged


def nest(assignments: Mapping[str, Assignment]) -> dict[str, Any]:
    """Return `{'optim.lr': 1}` as `{'optim': {'lr': 1}}`."""
    nested: dict[str, Any] = {}
    for key in sorted(assignments, key=lambda key: key.count(".")):
        *parents, leaf = key.split(".")
        inside = nested
        for parent in parents:
            inner = inside.setdefault(parent, {})
            if not isinstance(inner, dict):
                source = assignments[key].source
                raise ConfigError(
                    f"{source} sets a part of {quoted(parent)}, which is set to {quoted(inner)} elsewhere."
                )
            inside = inner
        value = assignments[key].value
        inside[leaf] = dict(value) if isinstance(value, Mapping) else value
    return nested


def _text(value: Any) -> str:
    """Return a value as text for comparing flags with files: '1e-5' and 1e-05 are the same."""
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError):
        return quoted(value)
