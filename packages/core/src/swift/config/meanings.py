"""Meanings of third-party flags without a key: not needed, only some values accepted, or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swift.config.values import looks_like_switch, quoted
from swift.errors import ConfigError

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
