"""Fields of what a server answers, each of the kind that it is read as, or one message that names server and place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from swift.errors import ModelError
from swift.untrusted import is_unicode, json_kind

LOOK = "Look at the server's log."
_KINDS = {str: "a text", list: "a list", dict: "an object", int: "a whole number", float: "a number"}


def json_field(address: str, answer: Any, *place: str | int, kind: type | None = None) -> Any:
    """Return what stands at a place of an answer (`"choices", 0, "message"`).

    Raise where there is nothing, or something of another kind than `kind`, texts that are not Unicode among them.
    """
    value: Any = answer
    for number, key in enumerate(place, 1):
        at_place = isinstance(value, list) and isinstance(key, int) and key < len(value)
        if at_place or (isinstance(value, dict) and key in value):
            value = value[key]
        else:
            raise ModelError(f"The server at {address} answers without {shown(place[:number])}.", hint=LOOK)
    if kind is not None and not isinstance(value, kind):
        raise unexpected_value(address, shown(place), value, _KINDS[kind])
    if isinstance(value, str) and not is_unicode(value):
        raise unexpected_value(address, shown(place), "a text with half of a surrogate pair")
    return value


def json_numbers(address: str, answer: Any, *place: str | int, kind: type[int] | type[float] = float) -> list[Any]:
    """Return the numbers that stand at a place of an answer: none is NaN, and tokens (`int`) fit into 32 bits."""
    values = json_field(address, answer, *place, kind=list)
    for number, value in enumerate(values):
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31
        good = whole and value >= 0 if kind is int else whole or (isinstance(value, float) and not math.isnan(value))
        if not good:
            raise unexpected_value(address, shown((*place, number)), value, _KINDS[kind])
    return [*values]


def unexpected_value(address: str, place: str, value: Any, expected: str = "") -> ModelError:
    """Return the error about something that cannot be meant; without `expected`, `value` is its description."""
    told = value if isinstance(value, str) and not expected else json_kind(value)
    if isinstance(value, float | int) and not isinstance(value, bool):
        told = f"the number {value!r}" if not abs(value) > 1e18 else "a huge number"
    instead = f" instead of {expected}" if expected else ""
    return ModelError(f"The server at {address} answers with {told} as {place}{instead}.", hint=LOOK)


def shown(place: Sequence[str | int]) -> str:
    """Return a place in JSON as programs write it: `choices[0].message`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).removeprefix(".")
