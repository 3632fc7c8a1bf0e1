"""A configuration before validation: each key, its value, and the flag or line of a file that set it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from swift.config.flags import Flag, FlagTable, Settings, nearest_flag
from swift.config.problems import subject
from swift.config.values import coerce, literal, quoted
from swift.errors import ConfigError
from swift.plugins.known import MIXES

NOTE = "@note"
"""In settings: not a key but a note for the user about the flag, as the end of a sentence."""


@dataclass(frozen=True)
class Assignment:
    """A value, and what set it."""

    value: Any
    source: str
    """The flag as typed, the line of a file, or the call."""


def contradiction(key: str, earlier: Assignment, later: Assignment) -> ConfigError:
    """Return the error for two assignments of a key that disagree."""
    both = frozenset((str(earlier.value), str(later.value)))
    return ConfigError(
        f"{earlier.source} and {later.source} contradict each other: {key.lstrip('@')} cannot be both "
        f"{quoted(earlier.value)} and {quoted(later.value)}.",
        hint=MIXES.get((key, both), "Keep one of them."),
    )


def set_consistently(merged: MutableMapping[str, Assignment], key: str, value: Any, source: str) -> None:
    """Set a key; raise `ConfigError` where it has another value."""
    earlier, later = merged.get(key), Assignment(value, source)
    if earlier is not None and str(earlier.value).lower() != str(value).lower():
        raise contradiction(key, earlier, later)
    merged[key] = later


def whole_number(assignment: Assignment) -> int:
    """Return the value as a number of at least 1; raise `ConfigError` for any other."""
    digits = quoted(assignment.value).strip("'")
    if not digits.isdecimal() or len(digits) > 9 or int(digits) < 1:
        raise ConfigError(
            f"{assignment.source} must be a whole number of at least 1, not {quoted(assignment.value)}.",
            hint=f"For example: {assignment.source} 8",
        )
    return int(digits)


class Draft:
    """Assignments of one layer: a file, the flags, or the keywords of a call."""

    def __init__(self, table: FlagTable) -> None:
        self.assignments: dict[str, Assignment] = {}
        self.notes: list[str] = []
        """Notes for the user about flags that set nothing."""
        self._unless_set: dict[str, Assignment] = {}
        self._table = table

    def set(self, key: str, value: Any, source: str) -> None:
        """Set one key; raise `ConfigError` where the layer has set it to another value."""
        field = self._table.fields.get(key)
        if field is not None:
            bare = field.bare is not None and value is True
            value = coerce(field, field.bare if bare else value, subject(source, key))
        elif self._table.mapping_of(key):
            value = literal(value)
        earlier = self.assignments.get(key)
        if earlier is not None and _comparable(earlier.value) != _comparable(value):
            raise contradiction(key, earlier, Assignment(value, source))
        self.assignments.setdefault(key, Assignment(value, source))

    def apply(self, settings: Settings, source: str) -> None:
        """Apply the settings of one flag: keys, defaults (`?`) and notes."""
        for key, value in settings.items():
            if key == NOTE:
                self.notes.append(f"{source} {value}")
            elif key.startswith("?"):
                self._unless_set[key.removeprefix("?")] = Assignment(value, source)
            else:
                self.set(key, value, source)

    def finish(self) -> None:
        """Apply the defaults that flags imply for keys that this layer does not set."""
        for key, implied in self._unless_set.items():
            if key not in self.assignments:
                self.set(key, implied.value, implied.source)
                self.notes.append(f"{implied.source}: {key} is {implied.value}, unless you set it.")
        self._unless_set.clear()

    def add_flag(self, flag: Flag) -> None:
        """Add one flag of the command line, an alias or a key; lists from several flags of one key are joined."""
        if flag.arity == "rest" or flag.name in self._table.third_party_arity:
            self.notes.append(self._table.third_party[flag.name].check(flag.typed, flag.value))
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
        """Add a nested mapping of sections, with aliases at the top level; `sources` has the source of known keys."""
        sections = self._table.sections
        for name, value in content.items():
            if not isinstance(name, str):
                raise ConfigError(f"{source}: the section name {quoted(name)} is not a string.")
            own = sources.get(name, f"{source} ({name})")
            if name in sections and isinstance(value, Mapping):
                for key, inner in value.items():
                    self._add_key(f"{name}.{key}", inner, sources.get(f"{name}.{key}", f"{source} ({name}.{key})"))
            elif name in sections and value is None:
                continue  # an empty section
            elif name in sections and name not in self._table.aliases:
                raise ConfigError(f"{own}: the section {name} must be a mapping, not {quoted(value)}.")
            else:
                self._add_key(name, value, own)

    def _add_key(self, name: str, value: Any, source: str) -> None:
        table = self._table
        key = name.replace("-", "_")
        alias = table.aliases.get(key)
        if alias is not None and alias.arity == "switch" and self._left_open(key, value):
            return
        if alias is not None:
            self.apply(alias.translate(subject(source, name), value), source)
        elif key in table.third_party:
            if value is not None:
                self.notes.append(table.third_party[key].check(subject(source, name), value))
        elif key in table.fields or key.partition(".")[0] in table.open_sections or table.mapping_of(key):
            self.set(key, value, source)
        else:
            meant = nearest_flag(key, [*table.sections, *table.fields, *table.aliases])
            suggestion = f" Did you mean {meant!r}?" if meant else ""
            raise ConfigError(f"{source}: unknown key {quoted(name)}.{suggestion}")

    def _left_open(self, name: str, value: Any) -> bool:
        """Return whether a switch without an unset state has the value None, as in arguments that a program saved."""
        alias = self._table.aliases.get(name)
        field = self._table.fields.get(alias.key if alias else name)
        return str(value).lower() in ("none", "null") and not (field is not None and field.optional)


def source_of(assignments: Mapping[str, Assignment], key: str) -> str:
    """Return where a key, a key inside it, or the nearest mapping around it was set."""
    inside = next((other for other in assignments if other.startswith(f"{key}.")), None)
    if key not in assignments and inside is not None:
        return assignments[inside].source
    while key and key not in assignments:
        key = key.rpartition(".")[0]
    return assignments[key].source if key else "configuration"


def merge(layers: list[Draft]) -> dict[str, Assignment]:
    """Return the assignments of all layers; later layers take precedence."""
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
                raise ConfigError(f"{source} sets a key inside {quoted(parent)}, which is also set to {quoted(inner)}.")
            inside = inner
        value = assignments[key].value
        inside[leaf] = dict(value) if isinstance(value, Mapping) else value
    return nested


def _comparable(value: Any) -> str:
    """Return a value in a form for comparing flags with files: '1e-5' and 1e-05 are equal."""
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError):
        return quoted(value)
