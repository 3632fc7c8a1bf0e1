"""From what was typed to what a field takes: switches, lists, JSON, and 'none'. Numbers are left to pydantic."""

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
"""Optional keys for which a script may have nothing to say: `--system "$SYSTEM"`."""


_COMMAS = re.compile(r"[^,()\[\]{}]+(,[^,()\[\]{}]+)+,?|[^,()\[\]{}]+,")
"""`a,b`, but not `[a,b]*` or `layers.{1,2}`."""
_OBJECT = re.compile(r"\{.*\}")
"""The example in the description of a mapping."""


def clipped(text: str) -> str:
    """Return a text for a message: long ones without their middle, and what no terminal prints escaped."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 200 else f"{text[:150]}…{text[-45:]}"


def quoted(value: object) -> str:
    """Return a value as it is written in Python, for a message."""
    try:
        return clipped(repr(value))
    except ValueError:  # the interpreter's own limit on digits
        return "a number of thousands of digits"


def looks_like_switch(text: str) -> bool:
    """Return whether a word after a bare flag is meant as its value."""
    return text.lower() in _ON + _OFF


def as_switch(value: Any, source: str) -> bool:
    """Return True or False for a bare flag or a word."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in _ON + _OFF:
        raise ConfigError(
            f"{source} is a switch, and {quoted(value)} is neither true nor false.",
            hint=f"Type: {source} true" if source.startswith("--") else "Write true or false.",
        )
    return word in _ON


def as_number(value: Any) -> float | None:
    """Return the number that a value is or spells; None for what is none."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def literal(value: Any) -> Any:
    """Return a value inside a free mapping.

    'true', 'null' and numbers mean what they mean in JSON, other text is text.
    """
    if not isinstance(value, str) or value.startswith(('"', "[", "{")):
        return value
    try:
        return parse_json(value, "this value", ConfigError)
    except ConfigError:
        return value


def coerce(field: Field, value: Any, source: str) -> Any:
    """Return a value in the shape of a field. Text comes from the command line, or from YAML."""
    if field.verbatim:
        return value
    if field.kind == "list" and isinstance(value, list | tuple):
        # One word of a command line may be a JSON list of several; `[ab]*` is a pattern.
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
    """Return whether a word leaves a field open: none does, unless it is one of the field's own values."""
    return value.lower() in ("none", "null") and value not in field.type_name.split(" | ")


def divided(value: Any) -> list[Any]:
    """Return the parts of a list written with commas; a file of that very name is one part, and so is a pattern."""
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
            f"{source} takes a JSON {expected}, and this is none: {problem.message}", hint=f"For example: {example}"
        ) from None
    if not isinstance(value, shape):
        raise ConfigError(f"{source} takes a JSON {expected}, not {quoted(text)}.", hint=f"For example: {example}")
    return value
