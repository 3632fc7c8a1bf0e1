"""Settings: what a flag means with a value. A `Draft` collects those of all flags, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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


def sets(keys: Mapping[str, Any]) -> Settings:
    """Return the settings that set several keys."""
    return tuple(Set(key, value) for key, value in keys.items())
