"""Sources of settings in errors: "tuner.kind lora (run.yaml:3)" for a key that an error names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from swift.errors import PluginError, SwiftError

if TYPE_CHECKING:
    from swift.config.sections import Config

_SELECTED = {
    "backend.name": r"\b{value} backend\b",
    "objective.name": r"\bobjective '{value}'",
    "optim.name": r"\boptimizer '{value}'",
    "tuner.kind": r"\btuner '{value}'",
    "export.to": r"\bexporter '{value}'",
}
"""Key → how errors name the plugin that it selects."""


@contextmanager
def naming_sources(config: Config, sources: Mapping[str, str]) -> Iterator[None]:
    """Add to errors where each key that they name was set; an error of a plugin is not the user's."""
    try:
        yield
    except PluginError:
        raise
    except SwiftError as error:
        error.message = with_sources(error.message, config, sources)
        raise


def with_sources(message: str, config: Config, sources: Mapping[str, str]) -> str:
    """Return a message with the source behind the first mention of each key, unless it names the source already."""
    for key, source in sources.items():
        section, _, name = key.partition(".")
        is_key_itself = key in source or source.lstrip("-").replace("-", "_") == name or source.endswith(f"({name})")
        if is_key_itself or source in message or source.startswith("swift "):
            continue
        mention = _mention(key, getattr(getattr(config, section, None), name, None), message)
        if mention is not None:
            message = f"{message[: mention.end()]} ({source}){message[mention.end() :]}"
    return message


def _mention(key: str, value: Any, message: str) -> re.Match[str] | None:
    """Find a key in a message, with its value if that follows, or what else errors name it by."""
    forms = {str(value), repr(value), str(value).lower(), f"{value:g}" if isinstance(value, float) else str(value)}
    shown = "|".join(re.escape(text) for text in sorted(forms, key=len, reverse=True))
    by_key = re.search(rf"(?<![\w.\-/]){re.escape(key)}(?: is)?(?: (?:{shown}))?(?![\w.]\w|\w)", message)
    if by_key is not None:
        return by_key
    if key in _SELECTED:
        return re.search(_SELECTED[key].format(value=re.escape(str(value))), message)
    section, _, name = key.partition(".")
    return re.search(rf"(?<![\w.]){name} {value}\b", message) if section == "parallel" else None
