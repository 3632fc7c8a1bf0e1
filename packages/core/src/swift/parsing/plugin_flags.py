"""Flags that plugins add: those of vocabularies, and aliases of their options. Importing this imports no plugin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from swift.config.fields import model_fields
from swift.config.flags import Alias, FlagTable
from swift.config.settings import Set
from swift.config.translate import renamed
from swift.errors import SwiftError

if TYPE_CHECKING:
    from swift.contracts import FlagTopic


def flag_topics() -> tuple[FlagTopic, ...]:
    """Return the flags of all vocabularies."""
    from swift.plugins import vocabularies

    return vocabularies.flag_topics()


def with_aliases_of_options(table: FlagTable, argv: Sequence[str]) -> FlagTable:
    """Return the table with the `Aliases` of options of the plugins that a command line names, behind core's own."""
    from swift.plugins.kinds import KINDS
    from swift.plugins.load import find, load

    added: dict[str, Alias] = {}
    for group, kind in KINDS.items():
        if kind.section is None:
            continue
        for name in _named(f"{kind.section}.{kind.selected_by}", argv, table):
            with suppress(SwiftError):  # it is reported when the plugin is selected
                model = load(find(group, name)).config_model
                for field in model_fields(model, kind.section) if model is not None else ():
                    aliases = (Alias(flag, field.key, field.kind, renamed(field.key), True) for flag in field.aliases)
                    added.update({alias.flag: alias for alias in aliases})
    return replace(table, aliases={**added, **table.aliases})


def _named(key: str, argv: Sequence[str], table: FlagTable) -> Iterator[str]:
    """Yield the values that flags on a command line give to a key."""
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        typed, joined, value = word.partition("=")
        name = table.name(typed) if typed.startswith("--") else ""
        alias = table.aliases.get(name)
        if name != key and (alias is None or alias.key != key):
            continue
        given = value if joined else following
        with suppress(SwiftError):
            settings = (Set(key, given),) if alias is None else alias.translate(typed, given)
            for setting in settings:
                if isinstance(setting, Set) and setting.key == key and isinstance(setting.value, str):
                    yield setting.value
