"""A configuration before validation: keys, requests and notes, each with its source.

Each source (a file, the flags, the keywords of a call) fills a `Layer`. `merge` makes one `Draft` of all layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from swift.config.flags import Flag, FlagTable, nearest_flag
from swift.config.problems import subject
from swift.config.settings import Fallback, Note, Request, Setting
from swift.config.values import coerce, literal, quoted
from swift.errors import ConfigError

MIXES = {
    ("backend.name", frozenset({"megatron", "deepspeed"})): "One backend trains the whole model: Megatron for the "
    "vision encoder and ZeRO 3 for the language model cannot be combined. Keep --backend megatron (the vision encoder "
    "is whole on its first stage; --tp, --pp and --cp share the rest), or --deepspeed zero3, which shards both.",
}
"""(Key, two values that were both requested) → what to type instead of a mix that articles about training describe."""


@dataclass(frozen=True)
class Assignment:
    """A value, and what set it."""

    value: Any
    source: str
    """The flag as typed, the line of a file, the environment variable, the plugin, or the call."""


def contradiction(key: str, earlier: Assignment, later: Assignment) -> ConfigError:
    """Return the error for two assignments of a key that disagree."""
    both = frozenset((str(earlier.value), str(later.value)))
    return ConfigError(
        f"{earlier.source} and {later.source} contradict each other: {key} cannot be both "
        f"{quoted(earlier.value)} and {quoted(later.value)}.",
        hint=MIXES.get((key, both), "Keep one of them."),
    )


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
    """Values of keys with their sources, requests that are still open, and notes for the user."""

    def __init__(self) -> None:
        self.assignments: dict[str, Assignment] = {}
        self.requests: dict[str, Assignment] = {}
        self.notes: list[str] = []

    def get(self, key: str) -> Assignment | None:
        """Return the value of a key with its source; None where nothing sets it."""
        return self.assignments.get(key)

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default where nothing sets it."""
        found = self.assignments.get(key)
        return default if found is None else found.value

    def set(self, key: str, value: Any, source: str) -> None:
        """Set a key; raise `ConfigError` where it has another value."""
        earlier, later = self.assignments.get(key), Assignment(value, source)
        if earlier is not None and _comparable(earlier.value) != _comparable(value):
            raise contradiction(key, earlier, later)
        self.assignments.setdefault(key, later)

    def replace(self, key: str, value: Any, source: str) -> None:
        """Set a key, whatever it was."""
        self.assignments[key] = Assignment(value, source)

    def default(self, key: str, value: Any, source: str) -> Assignment:
        """Set a key that nothing sets; return what it is."""
        return self.assignments.setdefault(key, Assignment(value, source))

    def drop(self, key: str) -> Assignment | None:
        """Unset a key; return what it was."""
        return self.assignments.pop(key, None)

    def take(self, request: str) -> Assignment | None:
        """Return an open request and close it; None where nothing requests it."""
        return self.requests.pop(request, None)

    def take_all(self, prefix: str) -> dict[str, Assignment]:
        """Return the open requests whose names begin with a prefix, by the rest of their names, and close them."""
        names = [name for name in self.requests if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.requests.pop(name) for name in names}

    def note(self, text: str) -> None:
        """Add a note for the user: a sentence."""
        self.notes.append(text)

    def source(self, key: str) -> str:
        """Return where a key, a key inside it, or the nearest mapping around it was set."""
        inside = next((other for other in self.assignments if other.startswith(f"{key}.")), None)
        if key not in self.assignments and inside is not None:
            return self.assignments[inside].source
        while key and key not in self.assignments:
            key = key.rpartition(".")[0]
        return self.assignments[key].source if key else "configuration"

    def nested(self) -> dict[str, Any]:
        """Return `{'optim.lr': 1}` as `{'optim': {'lr': 1}}`."""
        nested: dict[str, Any] = {}
        for key in sorted(self.assignments, key=lambda key: key.count(".")):
            *parents, leaf = key.split(".")
            inside = nested
            for parent in parents:
                inner = inside.setdefault(parent, {})
                if not isinstance(inner, dict):
                    raise ConfigError(
                        f"{self.assignments[key].source} sets a key inside {quoted(parent)}, which is also set to "
                        f"{quoted(inner)}."
                    )
                inside = inner
            value = self.assignments[key].value
            inside[leaf] = dict(value) if isinstance(value, Mapping) else value
        return nested


class Layer(Draft):
    """The draft of one source, in terms of the flags and keys of a command."""

    def __init__(self, table: FlagTable) -> None:
        super().__init__()
        self._fallbacks: dict[str, Assignment] = {}
        self._table = table

    def set(self, key: str, value: Any, source: str) -> None:
        """Set a key to a value in the shape of its field; raise `ConfigError` where it has another value."""
        field = self._table.fields.get(key)
        if field is not None:
            bare = field.bare is not None and value is True
            value = coerce(field, field.bare if bare else value, subject(source, key))
        elif self._table.mapping_of(key):
            value = literal(value)
        super().set(key, value, source)

    def apply(self, settings: Iterable[Setting], source: str, typed: str) -> None:
        """Apply the settings of one flag, which messages call as it was `typed`."""
        for setting in settings:
            match setting:
                case Note():
                    self.note(f"{typed} {setting.text}")
                case Fallback():
                    self._fallbacks[setting.key] = Assignment(setting.value, source)
                case Request():
                    earlier, later = self.requests.get(setting.name), Assignment(setting.value, typed)
                    if earlier is not None and _comparable(earlier.value) != _comparable(later.value):
                        raise contradiction(setting.name, earlier, later)
                    self.requests.setdefault(setting.name, later)
                case _:
                    self.set(setting.key, setting.value, source)

    def finish(self) -> None:
        """Apply the fallbacks of keys that this layer does not set."""
        for key, implied in self._fallbacks.items():
            if key not in self.assignments:
                self.set(key, implied.value, implied.source)
                self.note(f"{implied.source}: {key} is {implied.value}, unless you set it.")
        self._fallbacks.clear()

    def add_flag(self, flag: Flag) -> None:
        """Add one flag of the command line, an alias or a key; lists from several flags of one key are joined."""
        if flag.arity == "rest" or flag.name in self._table.third_party_arity:
            self.note(self._table.third_party[flag.name].check(flag.typed, flag.value))
            return
        if flag.arity == "switch" and self._left_open(flag.name, flag.value):
            self.note(f"{flag.typed} {flag.value} sets nothing.")
            return
        alias = self._table.aliases.get(flag.name)
        key = alias.key if alias is not None else flag.name
        earlier = self.assignments.get(key)
        if earlier is not None and flag.arity == "list" and (alias is None or alias.renames):
            self.replace(key, (*earlier.value, *flag.value), flag.typed)
        elif alias is not None:
            self.apply(alias.translate(flag.typed, flag.value), flag.typed, flag.typed)
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
            typed = subject(source, name)
            self.apply(alias.translate(typed, value), source, typed)
        elif key in table.third_party:
            if value is not None:
                self.note(table.third_party[key].check(subject(source, name), value))
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


def merge(layers: Iterable[Draft]) -> Draft:
    """Return the draft of all layers; later layers take precedence."""
    merged = Draft()
    for layer in layers:
        for key, assignment in layer.assignments.items():
            # A mapping set as a whole replaces the keys that an earlier layer set inside it.
            for inner in [other for other in merged.assignments if other.startswith(f"{key}.")]:
                merged.drop(inner)
            merged.assignments[key] = assignment
        merged.requests |= layer.requests
        merged.notes += layer.notes
    return merged


def _comparable(value: Any) -> str:
    """Return a value in a form for comparing flags with files: '1e-5' and 1e-05 are equal, and so are true and True."""
    if isinstance(value, bool) or str(value) in ("true", "false", "True", "False"):
        return str(value).lower()
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError):
        return quoted(value)
