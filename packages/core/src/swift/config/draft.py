"""A configuration while it is being put together: who set which key to what, before anything is validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swift.config.aliases import Settings, aliases
from swift.config.fields import core_fields
from swift.config.flags import OPEN_SECTIONS, Flag, mapping_of
from swift.config.sections import Config
from swift.config.values import coerce, literal, quoted
from swift.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Assignment:
    """One key, its value, and the words that set it."""

    value: Any
    said: str


class Draft:
    """Assignments of one layer: a file, the flags, or the keywords of a call."""

    def __init__(self) -> None:
        self.assignments: dict[str, Assignment] = {}

    def set(self, key: str, value: Any, said: str) -> None:
        """Set one key; two settings of one layer that disagree are an error."""
        field = core_fields().get(key)
        if field is not None:
            value = coerce(field, value, said)
        elif mapping_of(key):
            value = literal(value)
        earlier = self.assignments.get(key)
        if earlier is not None and _text(earlier.value) != _text(value):
            raise ConfigError(
                f"{earlier.said} and {said} contradict each other: {key.lstrip('@')} cannot be both "
                f"{quoted(earlier.value)} and {quoted(value)}.",
                hint="Keep one of them.",
            )
        self.assignments.setdefault(key, Assignment(value, said))

    def apply(self, settings: Settings, said: str) -> None:
        """Set several keys that one flag stands for."""
        for key, value in settings.items():
            self.set(key, value, said)

    def add_flag(self, flag: Flag) -> None:
        """One flag of the command line: an alias, or a dotted key."""
        alias = aliases().get(flag.name)
        if alias is not None:
            self.apply(alias.translate(flag.said, flag.value), flag.said)
        else:
            self.set(flag.name, flag.value, flag.said)

    def add_mapping(self, content: Mapping[str, Any], say: Mapping[str, str], source: str) -> None:
        """A nested mapping: sections by name, and aliases at the top. `say` names the place of a key, where known."""
        for name, value in content.items():
            if not isinstance(name, str):
                raise ConfigError(f"{source}: {quoted(name)} is not the name of a section.")
            place = say.get(name, f"{source} ({name})")
            if name in Config.model_fields and isinstance(value, Mapping):
                for key, inner in value.items():
                    self._add_key(f"{name}.{key}", inner, say.get(f"{name}.{key}", f"{source} ({name}.{key})"))
            elif name in Config.model_fields and value is None:
                continue  # an empty section
            elif name in Config.model_fields and name not in aliases():
                raise ConfigError(f"{place}: {name} is a section with keys of its own, not {quoted(value)}.")
            else:
                self._add_key(name, value, place)

    def _add_key(self, name: str, value: Any, place: str) -> None:
        try:
            self._add(name, value, place)
        except ConfigError as error:
            if name.rpartition(".")[2] not in error.message:  # a flag says what it sets, a line of a file does not
                error.message += f" (The key is {name}.)"
            raise

    def _add(self, name: str, value: Any, place: str) -> None:
        spelled = name.replace("-", "_")
        alias = aliases().get(spelled)
        if alias is not None:
            self.apply(alias.translate(place, value), place)
        elif spelled in core_fields() or spelled.partition(".")[0] in OPEN_SECTIONS or mapping_of(spelled):
            self.set(spelled, value, place)
        else:
            known = [*Config.model_fields, *core_fields(), *aliases()]
            raise ConfigError(f"{place}: there is no key {quoted(name)}.{did_you_mean(name, known)}")


def merge(layers: list[Draft]) -> dict[str, Assignment]:
    """Later layers outrank earlier ones."""
    merged: dict[str, Assignment] = {}
    for layer in layers:
        for key, assignment in layer.assignments.items():
            # A mapping set as a whole replaces the keys that an earlier layer set inside it.
            for inner in [other for other in merged if other.startswith(f"{key}.")]:
                del merged[inner]
            merged[key] = assignment
    return merged


def nest(assignments: Mapping[str, Assignment]) -> dict[str, Any]:
    """`{'optim.lr': 1}` as `{'optim': {'lr': 1}}`."""
    nested: dict[str, Any] = {}
    for key in sorted(assignments, key=lambda key: key.count(".")):
        *parents, leaf = key.split(".")
        inside = nested
        for parent in parents:
            inner = inside.setdefault(parent, {})
            if not isinstance(inner, dict):
                said = assignments[key].said
                raise ConfigError(f"{said} sets a part of {quoted(parent)}, which is set to {quoted(inner)} elsewhere.")
            inside = inner
        value = assignments[key].value
        inside[leaf] = dict(value) if isinstance(value, Mapping) else value
    return nested


def _text(value: Any) -> str:
    """For comparing what was typed with what a file says: '1e-5' and 1e-05 are the same."""
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError):
        return quoted(value)
