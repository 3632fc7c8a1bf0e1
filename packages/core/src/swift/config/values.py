"""Conversion of typed values to the type of a field: switches, lists, JSON and 'none'. pydantic parses numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.errors import ConfigError
from swift.untrusted import parse_json

if TYPE_CHECKING:
    from swift.config.fields import Field

_ON = ("true", "yes", "on", "1")
_OFF = ("false", "no", "off", "0")
_MAY_BE_EMPTY = ("data.system",)
"""Optional keys that a script may set to an empty string: `--system "$SYSTEM"`."""


_COMMAS = re.compile(r"[^,()\[\]{}]+(,[^,()\[\]{}]+)+,?|[^,()\[\]{}]+,")
"""`a,b`, but not `[a,b]*` or `layers.{1,2}`."""
_OBJECT = re.compile(r"\{.*\}")
"""The example in the description of a mapping."""


def clipped(text: str) -> str:
    """Return a string for a message: long ones without their middle, unprintable characters escaped."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 200 else f"{text[:150]}…{text[-45:]}"


def quoted(value: object) -> str:
    """Return the repr of a value for a message, clipped."""
    try:
        return clipped(repr(value))
    except ValueError:  # the interpreter's own limit on digits
        return "a number of thousands of digits"


def looks_like_switch(text: str) -> bool:
    """Return whether the argument after a switch is its value."""
    return text.lower() in _ON + _OFF


def as_switch(value: Any, source: str) -> bool:
    """Return the value of a switch; raise `ConfigError` for an invalid one."""
    if isinstance(value, bool):
        return value
    name = str(value).lower()
    if name not in _ON + _OFF:
        raise ConfigError(
            f"{source} must be true or false, not {quoted(value)}.",
            hint=f"Type: {source} true" if source.startswith("--") else "Write true or false.",
        )
    return name in _ON


def as_number(value: Any) -> float | None:
    """Return a value as a number; None where it is not one."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def literal(value: Any) -> Any:
    """Return a value inside a free mapping: 'true', 'null' and numbers as in JSON, anything else as a string."""
    if not isinstance(value, str) or value.startswith(('"', "[", "{")):
        return value
    try:
        return parse_json(value, "this value", ConfigError)
    except ConfigError:
        return value


def coerce(field: Field, value: Any, source: str) -> Any:
    """Return a value in the shape of a field; strings come from the command line or from YAML."""
    if field.verbatim:
        return value
    if field.kind == "list" and isinstance(value, list | tuple):
        # One argument may be a JSON list; `[ab]*` is a pattern.
        one = value[0] if len(value) == 1 else None
        value = one if isinstance(one, str) and one.startswith('["') else tuple(value)
    if field.kind == "list" and isinstance(value, tuple):
        return tuple(part for each in value for part in divided(each))
    if not isinstance(value, str):
        return value
    if field.optional and (_is_open(field, value) or (value == "" and field.key in _MAY_BE_EMPTY)):
        return None
    if field.kind == "list":
        return tuple(_json(value, list, source, '["a", "b"]')) if value.startswith("[") else tuple(divided(value))
    if field.kind == "mapping":
        described = _OBJECT.search(field.description)
        return _json(value, dict, source, f"'{described[0]}'" if described else '\'{"name": "value"}\'')
    return as_switch(value, source) if field.kind == "switch" else value


def _is_open(field: Field, value: str) -> bool:
    """Return whether a value unsets a field: none does, unless it is one of the field's own values."""
    return value.lower() in ("none", "null") and value not in field.type_name.split(" | ")


def divided(value: Any) -> list[Any]:
    """Return the parts of a comma-separated list; an existing file of that name is one part, and so is a pattern."""
    if not isinstance(value, str) or not _COMMAS.fullmatch(value) or _is_file(value):
        return [value]
    return [part.strip() for part in value.split(",") if part.strip()]


def _is_file(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for a name
        return False


def _json(text: str, shape: type, source: str, example: str) -> Any:
    expected = "list" if shape is list else "object"
    try:
        value = parse_json(text, quoted(text), ConfigError)
    except ConfigError as problem:
        raise ConfigError(
            f"{source} must be a JSON {expected}: {problem.message}", hint=f"For example: {example}"
        ) from None
    if not isinstance(value, shape):
        raise ConfigError(f"{source} must be a JSON {expected}, not {quoted(text)}.", hint=f"For example: {example}")
    return value


def names_in(value: Any) -> list[str]:
    """Return the names in a list, or in a string separated by commas or spaces."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return str(value).replace(",", " ").split()
