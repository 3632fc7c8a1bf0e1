"""Translations of flags that take one of several names; vocabularies may know further ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from swift.config.settings import Note, Settings, Translation, unknown_value
from swift.plugins.vocabularies import meaning_of_value


def choice(choices: Mapping[str, Settings], flag: str = "") -> Translation:
    """Return a translation of names; vocabularies may know further values of `flag`."""

    def translate(source: str, value: Any) -> Settings:
        name = str(value).lower()
        return choices[name] if name in choices else further_value(flag, source, value, choices)

    return translate


def further_value(flag: str, source: str, value: Any, valid: Iterable[str]) -> Settings:
    """Return what a value means that core's flag does not have; raise `ConfigError` where no vocabulary knows it."""
    meant = meaning_of_value(flag, str(value).lower())
    if meant is None:
        raise unknown_value(source, value, valid)
    if isinstance(meant, tuple):
        return meant
    return (Note(meant.check(source, value).removeprefix(f"{source} ")),)
