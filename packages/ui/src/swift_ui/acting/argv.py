"""From a form to the words of a command line: only what was changed, each value as one word that is no flag."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from swift.errors import UsageError
from swift.forms import FormField

MOST = 10_000
"""Characters of one value."""


def words_of(command: str, fields: Iterable[FormField], values: Mapping[str, Any], further: str = "") -> list[str]:
    """Return what is typed after `swift`: the command, arguments, the flags of `values`, and further flags as typed."""
    known = {field.key: field for field in fields}
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise UsageError(f"The form has no field {unknown[0]!r} any more.", hint="Load the page again.")
    words: list[str] = []
    arguments: list[str] = []
    for key, field in known.items():
        given = [text for text in _texts(values.get(key)) if text != ""]
        if given and field.flag:
            words += _flag(f"--{field.flag}", field, given)
        elif given:
            arguments += [_argument(text) for text in given]
    return [command, *arguments, *words, *_further(further)]


def shown(words: Sequence[str]) -> str:
    """Return the command as a person would type it."""
    return shlex.join(["swift", *words])


def _texts(value: Any) -> list[str]:
    found = [] if value is None else value if isinstance(value, list) else [value]
    texts = [str(each).lower() if isinstance(each, bool) else str(each).strip() for each in found]
    if any(len(text) > MOST or "\0" in text for text in texts):
        raise UsageError(f"A value has more than {MOST:,} characters, or one that no command line has.")
    return texts


def _flag(flag: str, field: FormField, given: list[str]) -> list[str]:
    """Return a flag with its values; those that look like flags are tied to it by `=`."""
    if field.kind != "list":
        given = given[-1:]
    if any(text.startswith("-") for text in given):
        return [f"{flag}={text}" for text in given]
    return [flag, *given]


def _argument(text: str) -> str:
    if text.startswith("-"):
        raise UsageError(f"{text} is a flag, and a name is wanted here.")
    return text


def _further(text: str) -> list[str]:
    """Return the words of the field for everything else. No shell reads them: a `;` is a part of a word."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"Further flags: {error}.", hint='Close the quotation: --system "Be brief."') from None
