"""Checked access to the JSON that a server returns; errors name the server and the field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from swift.errors import ModelError
from swift.untrusted import is_unicode, json_kind

LOOK = "Look at the server's log."
_KINDS = {str: "a string", list: "a list", dict: "an object", int: "a whole number", float: "a number"}


def json_field(address: str, body: Any, *path: str | int, kind: type | None = None) -> Any:
    """Return the value at a path (`"choices", 0, "message"`) of a response.

    Raise `ModelError` if it is missing, of another kind than `kind`, or a string that is not valid Unicode.
    """
    value: Any = body
    for count, key in enumerate(path, 1):
        in_list = isinstance(value, list) and isinstance(key, int) and key < len(value)
        if in_list or (isinstance(value, dict) and key in value):
            value = value[key]
        else:
            raise ModelError(f"The response of the server at {address} lacks {shown(path[:count])}.", hint=LOOK)
    if kind is not None and not isinstance(value, kind):
        raise unexpected_value(address, shown(path), value, _KINDS[kind])
    if isinstance(value, str) and not is_unicode(value):
        raise unexpected_value(address, shown(path), "a string with an unpaired surrogate")
    return value


def json_numbers(address: str, body: Any, *path: str | int, kind: type[int] | type[float] = float) -> list[Any]:
    """Return the list of numbers at a path: none is NaN, and tokens (`int`) fit into 32 bits."""
    values = json_field(address, body, *path, kind=list)
    for index, value in enumerate(values):
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31
        good = whole and value >= 0 if kind is int else whole or (isinstance(value, float) and not math.isnan(value))
        if not good:
            raise unexpected_value(address, shown((*path, index)), value, _KINDS[kind])
    return [*values]


def unexpected_value(address: str, path: str, value: Any, expected: str = "") -> ModelError:
    """Return the error about an invalid value; without `expected`, `value` is its description."""
    found = value if isinstance(value, str) and not expected else json_kind(value)
    if isinstance(value, float | int) and not isinstance(value, bool):
        found = f"the number {value!r}" if not abs(value) > 1e18 else "a huge number"
    instead = f" instead of {expected}" if expected else ""
    return ModelError(f"The server at {address} returned {found} as {path}{instead}.", hint=LOOK)


def shown(path: Sequence[str | int]) -> str:
    """Return a path in JSON in the usual notation: `choices[0].message`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")
