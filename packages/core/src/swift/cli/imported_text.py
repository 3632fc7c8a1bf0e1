"""The YAML of an import: swift's keys by section, each with its origin, and remarks about all other settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from swift.config.fields import core_fields
from swift.contracts import Remark, TranslatedRun
from swift.untrusted import shown

_TITLES = {
    "lost": "NOT imported; this changes the training:",
    "changed": "Different in swift:",
    "unneeded": "Not needed; the training is the same:",
}
_WIDE = 1 << 20
_LISTED = 100


def text_of(run: TranslatedRun, command: str) -> str:
    """Return the YAML file: the command to type, the remarks, then the keys."""
    lines = [
        f"# {run.recipe.program}: {shown(run.recipe.source)}, by swift config import",
        f"# {command}",
        *_remarks(run),
        "",
        *_keys(run),
    ]
    return "\n".join(lines) + "\n"


def _remarks(run: TranslatedRun) -> Iterable[str]:
    for kind, title in _TITLES.items():
        remarks = [remark for remark in run.remarks if remark.kind == kind]
        if remarks:
            yield "#"
            yield f"# {title}"
            yield from (f"#   {written_remark(remark)}" for remark in remarks)
    if run.empty:
        yield "#"
        yield f"# Empty or off: {shown(', '.join(run.empty), _LISTED * 20)}"
    if run.read_with_others:
        yield "#"
        names = shown(", ".join(run.read_with_others), _LISTED * 20)
        yield f"# Read together with other keys, or without effect: {names}"


def written_remark(remark: Remark) -> str:
    """Return a remark as one line: `key: value (why)`."""
    value = "" if remark.value in ("", None) else f" {_inline(remark.value)}"
    name = shown(remark.key, _LISTED)
    return f"{name}:{shown(value, _LISTED)} ({shown(remark.text, 4 * _LISTED)})" if name else f"{value} ({remark.text})"


def _inline(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _keys(run: TranslatedRun) -> Iterable[str]:
    """Yield the keys by section, in swift's order."""
    order = {key: position for position, key in enumerate(core_fields())}
    loose = sorted(key for key in run.settings if "." not in key)
    for key in loose:
        yield f"{key}: {_value(run.settings[key].value)}  # {shown(run.settings[key].origin, _LISTED)}"
    for section in dict.fromkeys(field.section for field in core_fields().values()):
        keys = [key for key in run.settings if key.partition(".")[0] == section and "." in key]
        if not keys:
            continue
        yield f"{section}:"
        for key in sorted(keys, key=lambda key: (order.get(key, len(order)), key)):
            setting = run.settings[key]
            name = _value(key.partition(".")[2])
            yield f"  {name}: {_value(setting.value)}  # {shown(setting.origin, _LISTED)}"


def _value(value: Any) -> str:
    """Return a value as YAML in one line."""
    style = '"' if isinstance(value, str) and "\n" in value else None
    text: str = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=_WIDE, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
