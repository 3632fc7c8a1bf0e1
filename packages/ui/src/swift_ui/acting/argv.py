"""Build the argv of a command from a form: only changed values, none of which can become a flag."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from swift.errors import UsageError
from swift.forms import FormField

MOST = 10_000
"""Maximum length of a value in characters."""


def argv_of(command: str, fields: Iterable[FormField], values: Mapping[str, Any], further: str = "") -> list[str]:
    """Return the arguments of `swift`: the command, positional arguments, flags of `values`, and `further` flags."""
    known = {field.key: field for field in fields}
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise UsageError(f"Unknown field {unknown[0]!r} of the form.", hint="Reload the page.")
    flags: list[str] = []
    arguments: list[str] = []
    for key, field in known.items():
        given = [text for text in _strings(values.get(key)) if text != ""]
        if given and field.flag:
            flags += _flag(f"--{field.flag}", field, given)
        elif given:
            arguments += [_argument(text) for text in given]
    return [command, *arguments, *flags, *_further(further)]


def shown(argv: Sequence[str]) -> str:
    """Return the command line, quoted for a shell."""
    return shlex.join(["swift", *argv])


def _strings(value: Any) -> list[str]:
    found = [] if value is None else value if isinstance(value, list) else [value]
    strings = [str(each).lower() if isinstance(each, bool) else str(each).strip() for each in found]
    if any(len(text) > MOST or "\0" in text for text in strings):
        raise UsageError(f"A value has more than {MOST:,} characters, or a NUL character.")
    return strings


def _flag(flag: str, field: FormField, given: list[str]) -> list[str]:
    """Return a flag with its values; values that begin with `-` are attached with `=`."""
    if field.kind != "list":
        given = given[-1:]
    if any(text.startswith("-") for text in given):
        return [f"{flag}={text}" for text in given]
    return [flag, *given]


def _argument(text: str) -> str:
    if text.startswith("-"):
        raise UsageError(f"Expected a name instead of the flag {text!r}.")
    return text


def _further(text: str) -> list[str]:
    """Split the field of further flags. No shell runs them: `;` is an ordinary character."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"Further flags: {error}.", hint='Close the quotes: --system "Be brief."') from None
