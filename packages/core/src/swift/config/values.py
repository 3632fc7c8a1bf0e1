"""From what was typed to what a field takes: switches, lists, JSON, and 'none'. Numbers are left to pydantic."""

from __future__ import annotations

import json
from typing import Any

from swift.config.fields import Field
from swift.errors import ConfigError

_ON = ("true", "yes", "on", "1")
_OFF = ("false", "no", "off", "0")


def looks_like_switch(text: str) -> bool:
    """Whether a word after a bare flag is meant as its value."""
    return text.lower() in _ON + _OFF


def as_switch(value: Any, said: str) -> bool:
    """True or False from a bare flag or a word."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in _ON + _OFF:
        raise ConfigError(f"{said} is a switch, and {value!r} is neither true nor false.", hint=f"Type: {said} true")
    return word in _ON


def literal(value: Any) -> Any:
    """A value inside a free mapping: 'true', 'null' and numbers mean what they mean in JSON, other text is text."""
    if not isinstance(value, str) or value.startswith(('"', "[", "{")):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def coerce(field: Field, value: Any, said: str) -> Any:
    """`value` in the shape of `field`. Text comes from the command line, or from YAML."""
    if isinstance(value, str):
        if field.optional and value.lower() in ("none", "null", ""):
            return None
        if field.kind == "list":
            return tuple(_json(value, list, said)) if value.startswith("[") else (value,)
        if field.kind == "mapping":
            return _json(value, dict, said)
        if field.kind == "switch":
            return as_switch(value, said)
    if field.kind == "list" and isinstance(value, list):
        return tuple(value)
    return value


def _json(text: str, shape: type, said: str) -> Any:
    wanted = "list" if shape is list else "object"
    example = '["a", "b"]' if shape is list else '\'{"question": "query"}\''
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        raise ConfigError(
            f"{said} takes a JSON {wanted}, and {text!r} is not JSON: {problem.msg} at character {problem.pos + 1}.",
            hint=f"For example: {said} {example}",
        ) from None
    if not isinstance(value, shape):
        raise ConfigError(f"{said} takes a JSON {wanted}, not {text!r}.", hint=f"For example: {said} {example}")
    return value
