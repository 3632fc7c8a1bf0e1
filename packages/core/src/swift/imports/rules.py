"""Rules for third-party keys: rename, translate, not needed, or not supported.

A key without a rule that is also one of swift's flags (`swift.config.aliases`) is read as that flag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from swift.config.aliases import aliases
from swift.config.compat.meanings import NotNeeded, Refused
from swift.config.compat.table import third_party_flag
from swift.config.draft import NOTE
from swift.config.fields import core_fields
from swift.config.flags import Settings
from swift.errors import SwiftError
from swift.imports.recipe import RecipeImport, is_off, names_in

Rule = Callable[[RecipeImport, str, Any], None]
"""(import in progress, third-party key, value)."""
Table = Mapping[str, Rule]


def to(key: str) -> Rule:
    """Return a rule that sets a key of swift to the value."""

    def rule(run: RecipeImport, name: str, value: Any) -> None:
        field = core_fields().get(key)
        run.set(key, names_in(value) if field is not None and field.kind == "list" else value, name)

    return rule


def choice(choices: Mapping[str, Settings], otherwise: str) -> Rule:
    """Return a rule that translates names; other values are lost with the reason `otherwise`."""

    def rule(run: RecipeImport, name: str, value: Any) -> None:
        settings = choices.get(str(value).lower())
        if settings is None:
            run.lose(name, value, otherwise)
            return
        for key, meant in settings.items():
            run.set(key, meant, name)

    return rule


def when_on(settings: Settings) -> Rule:
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


def each(names: Iterable[str], rule: Rule) -> dict[str, Rule]:
    """Return the same rule for several keys."""
    return dict.fromkeys(names, rule)


def as_flag(run: RecipeImport, name: str, value: Any) -> bool:
    """Read a key as the flag of the same name; False where swift has none."""
    alias = aliases().get(name.replace("-", "_"))
    if alias is None:
        return False
    if alias.arity == "list":
        value = tuple(names_in(value))
    elif alias.arity == "value" and isinstance(value, bool):
        value = str(value).lower()
    try:
        settings = alias.translate(name, value)
    except SwiftError as error:
        run.lose(name, value, error.message)
        return True
    if (note := settings.pop(NOTE, None)) is not None:
        run.unneeded(name, value, note)
    for key, meant in settings.items():
        # A request (`@...`) is resolved once the whole configuration is known: keep the flag itself.
        value = list(meant) if isinstance(meant, tuple) else meant
        if not key.startswith("?"):
            run.set(name if key.startswith("@") else key, value, name)
        elif key[1:] not in run.settings:  # a default
            run.set(key[1:], value, name)
    return True


def as_other_flag(run: RecipeImport, name: str, value: Any) -> bool:
    """Add the remark of the table of third-party flags for a key; False where the table does not have it."""
    meaning = third_party_flag(name.replace("-", "_"))
    if meaning is None:
        return False
    if is_off(value) and str(value).lower() != "0":
        run.empty.append(name)
    elif isinstance(meaning, NotNeeded):
        run.unneeded(name, value, meaning.note)
    else:
        try:
            meaning.check(name, value)
        except SwiftError:
            hidden = isinstance(meaning, Refused) and meaning.secret
            run.lose(name, "" if hidden else value, meaning.reason.rstrip("."))
        else:
            run.unneeded(name, value, "matches what swift does")
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
