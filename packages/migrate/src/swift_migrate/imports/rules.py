"""Rules for third-party keys: rename, translate, not needed, or not supported.

A key without a rule that is also one of swift's flags is read as that flag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from swift.config import core_fields, names_in
from swift.parsing import read_flag, read_third_party_flag
from swift_migrate.imports.recipe import RecipeImport, is_off

Rule = Callable[[RecipeImport, str, Any], None]
"""(import in progress, third-party key, value)."""
Table = Mapping[str, Rule]


def to(key: str) -> Rule:
    """Return a rule that sets a key of swift to the value."""

    def rule(run: RecipeImport, name: str, value: Any) -> None:
        field = core_fields().get(key)
        run.set(key, names_in(value) if field is not None and field.kind == "list" else value, name)

    return rule


def choice(choices: Mapping[str, Mapping[str, Any]], otherwise: str) -> Rule:
    """Return a rule that translates names; other values are lost with the reason `otherwise`."""

    def rule(run: RecipeImport, name: str, value: Any) -> None:
        settings = choices.get(str(value).lower())
        if settings is None:
            run.lose(name, value, otherwise)
            return
        for key, meant in settings.items():
            run.set(key, meant, name)

    return rule


def when_on(settings: Mapping[str, Any]) -> Rule:
    """Return a rule that sets keys where a switch is on."""

    def rule(run: RecipeImport, name: str, value: Any) -> None:
        for key, meant in settings.items() if not is_off(value) else ():
            run.set(key, meant, name)

    return rule


def unneeded(reason: str) -> Rule:
    """Return a rule that notes why a setting is not needed."""
    return lambda run, name, value: run.unneeded(name, value, reason)


def secret(reason: str) -> Rule:
    """Return a rule that notes why a setting is not needed, without its value."""
    return lambda run, name, value: run.unneeded(name, "", reason)


def changed(reason: str) -> Rule:
    """Return a rule that notes what swift does instead."""
    return lambda run, name, value: None if is_off(value) else run.changed(name, value, reason)


def absent(reason: str, harmless: str = "") -> Rule:
    """Return a rule for an unsupported setting, which is harmless when off or at this value."""

    def rule(run: RecipeImport, name: str, value: Any) -> None:
        if is_off(value) or str(value).lower() == harmless:
            run.unneeded(name, value, "matches what swift does")
        else:
            run.lose(name, value, reason)

    return rule


def as_flag(run: RecipeImport, name: str, value: Any) -> bool:
    """Read a key as the flag of the same name; False where swift has none."""
    reading = read_flag(name, value)
    if reading is None:
        return False
    if reading.refused:
        run.lose(name, value, reading.refused)
    if reading.not_needed:
        run.unneeded(name, value, reading.not_needed)
    for key, meant in reading.settings.items():
        run.set(key, meant, name)
    for key, meant in reading.defaults.items():
        if key not in run.settings:
            run.set(key, meant, name)
    return True


def as_other_flag(run: RecipeImport, name: str, value: Any) -> bool:
    """Add the remark of the table of third-party flags for a key; False where the table does not have it."""
    reading = read_third_party_flag(name, value)
    if reading is None:
        return False
    if is_off(value) and str(value).lower() != "0":
        run.empty.append(name)
    elif reading.refused:
        run.lose(name, "" if reading.secret else value, reading.refused.rstrip("."))
    else:
        run.unneeded(name, value, reading.not_needed)
    return True


def apply(run: RecipeImport, table: Table, *, flags: bool = True) -> None:
    """Handle all remaining settings: by the table, as flags of swift, or as unknown."""
    for name in list(run.values):
        if name not in run.values:
            continue  # handled together with another one
        value = run.values.pop(name)
        rule = table.get(name)
        if rule is not None:
            rule(run, name, value)
        elif not (flags and (as_flag(run, name, value) or as_other_flag(run, name, value))):
            _unknown(run, name, value)


def _unknown(run: RecipeImport, name: str, value: Any) -> None:
    if value is False or value in ("", [], {}):
        run.empty.append(name)
    else:
        run.lose(name, value, "unknown key")
