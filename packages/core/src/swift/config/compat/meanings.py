"""Third-party flags without a key (not needed, only some values accepted, or refused), and the usual translations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from swift.config.flags import Settings, Translation
from swift.config.values import as_switch, looks_like_switch, quoted
from swift.errors import ConfigError, did_you_mean

_LEAVE_OUT = "Leave it out."
_SAME = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}


@dataclass(frozen=True)
class NotNeeded:
    """A flag that does not change the result, whatever its value."""

    note: str
    """Why, as the end of a sentence: 'swift always counts tokens'."""

    def check(self, source: str, value: Any) -> str:
        """Return the note for the user."""
        return f"{_typed(source, value)} is not needed: {self.note}."


@dataclass(frozen=True)
class Default:
    """A flag with values that match swift's behavior; the others are refused."""

    values: tuple[str, ...]
    """In lower case. `true` and `false` stand for every spelling of a switch."""
    note: str
    """What swift does, as the end of a sentence."""
    reason: str = ""
    """Why other values are refused, as a sentence; default: the note."""
    hint: str = _LEAVE_OUT
    """What to type instead."""

    def __post_init__(self) -> None:
        if not self.reason:
            object.__setattr__(self, "reason", f"{self.note}.")

    def check(self, source: str, value: Any) -> str:
        """Return the note for the user; raise `ConfigError` for another value."""
        if _normalized(value, self.values) in self.values:
            return f"{_typed(source, value)} is not needed: {self.note}."
        raise _refusal(source, value, self.reason, self.hint)


@dataclass(frozen=True)
class Refused:
    """A flag that would change the result and is not supported."""

    reason: str
    """A sentence."""
    hint: str = _LEAVE_OUT
    """What to type instead."""
    secret: bool = False
    """Whether the value must not be shown."""

    def check(self, source: str, value: Any) -> str:
        """Raise `ConfigError`."""
        raise _refusal(source, True if self.secret else value, self.reason, self.hint)


Meaning = NotNeeded | Default | Refused


def off(reason: str, hint: str = _LEAVE_OUT) -> Default:
    """Return the meaning of a switch for an unsupported feature: off is accepted, on is refused."""
    return Default(("false", "none"), "it is always off", reason, hint)


def renamed(key: str) -> Translation:
    """Return a translation that sets a key to the value unchanged."""
    return lambda _, value: {key: value}


def request(name: str) -> Translation:
    """Return a translation that leaves the value to `swift.config.requests`."""
    return renamed(f"@{name}")


def switch(key: str) -> Translation:
    """Return a translation that sets a key to true or false."""
    return lambda source, value: {key: as_switch(value, source)}


def when_on(settings: Settings, otherwise: Settings | None = None) -> Translation:
    """Return a translation of a switch: its settings when it is on, and when it is off."""
    return lambda source, value: dict(settings if as_switch(value, source) else otherwise or {})


def choice(choices: Mapping[str, Settings], refused: Mapping[str, Refused] | None = None) -> Translation:
    """Return a translation of names; those in `refused` raise an error with the reason."""

    def translate(source: str, value: Any) -> Settings:
        name = str(value).lower()
        if refused and name in refused:
            refused[name].check(source, value)
        if name not in choices:
            raise unknown_value(source, value, choices)
        return dict(choices[name])

    return translate


def unknown_value(source: str, value: Any, valid: Iterable[str]) -> ConfigError:
    """Return the error for a value that is not among the valid ones."""
    return ConfigError(
        f"Unknown value {quoted(value)} for {source}.{did_you_mean(str(value).lower(), valid)}",
        hint=f"Valid values: {', '.join(valid)}",
    )


def _refusal(source: str, value: Any, reason: str, hint: str) -> ConfigError:
    return ConfigError(f"{_typed(source, value)} is not supported: {reason}", hint=hint)


def _typed(source: str, value: Any) -> str:
    """Return a flag, or the line of a file, with its value as typed."""
    if value is True:
        return source
    values = value if isinstance(value, tuple | list) else (value,)
    text = " ".join(str(each).lower() if isinstance(each, bool) else str(each) for each in values)
    return f"{source} {quoted(text)[1:-1]}"


def _normalized(value: Any, known: tuple[str, ...]) -> str:
    text = str(value).lower()
    switch = looks_like_switch(text) and {"true", "false"} & set(known) and text not in known
    return _SAME.get(text, text) if switch else text
