"""Sources of settings in errors: "tuner.kind lora (run.yaml:3)" for a key that an error names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.config.values import as_number, quoted
from swift.errors import PluginError, SwiftError

if TYPE_CHECKING:
    from swift.config.draft import Assignment

_SELECTED = {
    "backend.name": r"\b{value} backend\b",
    "objective.name": r"\bobjective '{value}'",
    "optim.name": r"\boptimizer '{value}'",
    "tuner.kind": r"\btuner '{value}'",
    "export.to": r"\bexporter '{value}'",
}
"""Key → how errors name the plugin that it selects."""


@contextmanager
def naming_sources(assignments: Mapping[str, Assignment]) -> Iterator[None]:
    """Add to errors where each key that they name was set; of an error of a plugin only the key that it is about."""
    try:
        yield
    except SwiftError as error:
        named = assignments
        if isinstance(error, PluginError):
            named = {key: assignment for key, assignment in assignments.items() if key == error.key}
        error.message = with_sources(error.message, named, about=error.key)
        raise


def with_sources(message: str, assignments: Mapping[str, Assignment], *, about: str | None = None) -> str:
    """Return a message with the source behind the first mention of each key, unless it names the source already.

    The key that it is `about` may be mentioned by its value alone.
    """
    for key, assignment in assignments.items():
        source, (section, _, name) = assignment.source, key.partition(".")
        is_flag_of_key = source.lstrip("-").replace("-", "_") in (section, name)
        is_key_itself = is_flag_of_key or key in source or source.endswith(f"({name})")
        if is_key_itself or source in message or source.startswith("swift "):
            continue
        mention = _mention(key, assignment.value, message)
        if mention is None and key == about:
            mention = _value_in(message, assignment.value)
        if mention is not None:
            message = f"{message[: mention.end()]} ({source}){message[mention.end() :]}"
    return message


def _mention(key: str, value: Any, message: str) -> re.Match[str] | None:
    """Find a key in a message, with its value if that follows, or what else errors name it by."""
    shown, end = _shown(value), r"(?![\w.]\w|\w)"
    inside = r"(?:\.\w+)*" if isinstance(value, Mapping) else ""
    forms = [rf"(?<![\w.\-/]){re.escape(key)}{inside}(?:(?: is)? {shown})?{end}"]
    section, _, name = key.partition(".")
    if key in _SELECTED:
        forms.append(_SELECTED[key].format(value=shown))
    elif section == "parallel":
        forms.append(rf"(?<![\w.]){name} {shown}{end}")
    elif "_" in name:  # others, such as `loss`, are words
        forms.append(rf"(?<![\w.\-/'\"]){re.escape(name)}(?: {shown})?{end}")
    return next(filter(None, (re.search(form, message) for form in forms)), None)


def _value_in(message: str, value: Any) -> re.Match[str] | None:
    """Find a value in a message, or the first of a list that it has; in quotes first, since it may be a plain word."""
    values = value if isinstance(value, list | tuple) else (value,)
    forms = [*(re.escape(quoted(each)) for each in values), *map(_shown, values)]
    found = (re.search(rf"(?<![\w.\-/']){form}(?![\w.:/-]\w|[\w/'])", message) for form in forms)
    return next(filter(None, found), None)


def _shown(value: Any) -> str:
    """Return a pattern of the forms in which errors show a value."""
    forms = {quoted(value)} | ({str(value)} if isinstance(value, str | Path) else set())
    if isinstance(value, bool):
        forms |= {str(value).lower(), "on" if value else "off"}
    elif (number := as_number(value)) is not None:
        forms |= {str(number), f"{number:g}"}
    return f"(?:{'|'.join(re.escape(form) for form in sorted(forms, key=len, reverse=True))})"
