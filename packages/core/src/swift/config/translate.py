"""Translations that several tables of third-party flags use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swift.config.flags import Translation
from swift.config.settings import Request, Set, Setting
from swift.config.values import as_switch, quoted
from swift.errors import ConfigError, did_you_mean


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
