"""Meanings of single flags, for those who translate configurations of third-party programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swift.config.meanings import NotNeeded, Refused
from swift.config.settings import Fallback, Note, Request
from swift.config.values import names_in
from swift.errors import SwiftError
from swift.parsing.aliases import aliases
from swift.parsing.plugin_flags import flag_topics, third_party_flag


@dataclass(frozen=True)
class FlagReading:
    """What a flag means with a value: what it sets, why it is not needed, or why it is refused."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Key → value. A flag whose meaning depends on the rest of the configuration stays as it is."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The same for keys that nothing else sets."""
    not_needed: str = ""
    """Why, as the end of a sentence; empty otherwise."""
    refused: str = ""
    """Why, as a sentence; empty otherwise."""
    secret: bool = False
    """Whether the value must not be shown."""


def read_flag(name: str, value: Any) -> FlagReading | None:
    """Return the meaning of a flag that swift has besides the names of keys; None where it has none."""
    alias = aliases().get(name.replace("-", "_"))
    if alias is None:
        return None
    if alias.arity == "list":
        value = tuple(names_in(value))
    elif alias.arity == "value" and isinstance(value, bool):
        value = str(value).lower()
    try:
        settings = tuple(alias.translate(name, value))
    except SwiftError as error:
        return FlagReading(refused=error.message)
    sets: dict[str, Any] = {}
    fallbacks: dict[str, Any] = {}
    for setting in settings:
        if not isinstance(setting, Note):
            read = fallbacks if isinstance(setting, Fallback) else sets
            key = name if isinstance(setting, Request) else setting.key
            read[key] = list(setting.value) if isinstance(setting.value, tuple) else setting.value
    return FlagReading(sets, fallbacks, not_needed="".join(each.text for each in settings if isinstance(each, Note)))


def read_third_party_flag(name: str, value: Any) -> FlagReading | None:
    """Return the meaning of a flag of a third-party program that swift does not have; None for an unknown one."""
    meaning = third_party_flag(name.replace("-", "_"))
    if meaning is None:
        return None
    if isinstance(meaning, NotNeeded):
        return FlagReading(not_needed=meaning.note)
    try:
        meaning.check(name, value)
    except SwiftError:
        secret = isinstance(meaning, Refused) and meaning.secret
        return FlagReading(refused=meaning.reason, secret=secret)
    return FlagReading(not_needed="matches what swift does")


def flags_of_plugins() -> frozenset[str]:
    """Return the flags that vocabularies of plugins add, those that they refuse included."""
    rows = [names for topic in flag_topics() for names in (*(flags for flags, *_ in topic.flags), *topic.meanings)]
    return frozenset(flag for names in rows for flag in names)
