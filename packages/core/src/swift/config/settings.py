"""Settings: what a flag means with a value, and the translations that several tables of flags use.

A `Draft` collects the settings of all flags, each with its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from swift.config.values import as_switch, quoted
from swift.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Set:
    """Sets a key."""

    key: str
    value: Any


@dataclass(frozen=True)
class Fallback:
    """Sets a key where the same command line or file sets it nowhere else."""

    key: str
    value: Any


@dataclass(frozen=True)
class Request:
    """A value whose keys depend on the rest of the configuration; a settler takes it from the draft by its name."""

    name: str
    value: Any


@dataclass(frozen=True)
class Note:
    """A remark for the user, as the end of a sentence that begins with the flag."""

    text: str


Setting = Set | Fallback | Request | Note
Settings = tuple[Setting, ...]
Translation = Callable[[str, Any], Settings]
"""(flag as typed, value) → what it sets."""


def sets(keys: Mapping[str, Any]) -> Settings:
    """Return the settings that set several keys."""
    return tuple(Set(key, value) for key, value in keys.items())


def renamed(key: str) -> Translation:
    """Return a translation that sets a key to the value unchanged."""
    return lambda _, value: (Set(key, value),)


def request(name: str) -> Translation:
    """Return a translation that leaves the value to `swift.parsing.requests`, or to `settle` of a vocabulary."""
    return lambda _, value: (Request(name, value),)


def switch(key: str) -> Translation:
    """Return a translation that sets a key to true or false."""
    return lambda source, value: (Set(key, as_switch(value, source)),)


def when_on(setting: Setting, *otherwise: Setting) -> Translation:
    """Return a translation of a switch: its setting when it is on, and the others when it is off."""
    return lambda source, value: (setting,) if as_switch(value, source) else otherwise


def unknown_value(source: str, value: Any, valid: Iterable[str]) -> ConfigError:
    """Return the error for a value that is not among the valid ones."""
    return ConfigError(
        f"Unknown value {quoted(value)} for {source}.{did_you_mean(str(value).lower(), valid)}",
        hint=f"Valid values: {', '.join(valid)}",
    )
