"""Flags that plugins add: those of vocabularies, third-party ones without a key included, and aliases of their options.

Importing this imports no plugin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from swift.config.fields import model_fields
from swift.config.flags import Alias, Arity, FlagTable
from swift.config.meanings import Default, Meaning
from swift.config.settings import Set, renamed
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

    selecting = {
        f"{kind.section}.{kind.selected_by}": (group, kind.section) for group, kind in KINDS.items() if kind.section
    }
    named = _named(selecting, argv, table)
    added: dict[str, Alias] = {}
    for key, (group, section) in selecting.items():
        for name in named.get(key, ()):
            with suppress(SwiftError):  # it is reported when the plugin is selected
                model = load(find(group, name)).config_model
                for field in model_fields(model, section) if model is not None else ():
                    aliases = (Alias(flag, field.key, field.kind, renamed(field.key), True) for flag in field.aliases)
                    added.update({alias.flag: alias for alias in aliases})
    return replace(table, aliases={**added, **table.aliases})


def _named(keys: Collection[str], argv: Sequence[str], table: FlagTable) -> dict[str, list[str]]:
    """Return key → the values that flags on a command line give to it."""
    named: dict[str, list[str]] = {}
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        typed, joined, value = word.partition("=")
        name = table.name(typed) if typed.startswith("--") else ""
        alias = table.aliases.get(name)
        key = name if alias is None else alias.key
        if key not in keys:
            continue
        given = value if joined else following
        with suppress(SwiftError):
            settings = (Set(key, given),) if alias is None else alias.translate(typed, given)
            for setting in settings:
                if isinstance(setting, Set) and setting.key == key and isinstance(setting.value, str):
                    named.setdefault(key, []).append(setting.value)
    return named


def third_party_flags() -> dict[str, Meaning]:
    """Return flag → meaning for the commands that train."""
    return _of_topics(flag_topics(), "")


def third_party_flag(flag: str) -> Meaning | None:
    """Return the meaning of a third-party flag of the commands that train; None for an unknown one."""
    return third_party_flags().get(flag)


@lru_cache(maxsize=64)
def _of_topics(topics: tuple[FlagTopic, ...], command: str) -> dict[str, Meaning]:
    return {
        flag: meaning
        for topic in topics
        if command in topic.commands or (not command and not topic.commands)
        for flags, meaning in topic.meanings.items()
        for flag in flags
    }


@dataclass(frozen=True)
class CommandFlags:
    """Third-party flags that one command knows."""

    meanings: Mapping[str, Meaning]
    arities: Mapping[str, Arity]


def flags_of_command(command: str, *, but: Collection[str] = ()) -> CommandFlags:
    """Return the third-party flags that a command knows, without its own (`but`)."""
    known = _of_topics(flag_topics(), command) if command else {}
    meanings = {flag: meaning for flag, meaning in known.items() if flag not in but}
    return CommandFlags(meanings, {flag: _arity(flag, meaning) for flag, meaning in meanings.items()})


_SWITCHES = ("merge_lora", "load_args", "stream")


def _arity(flag: str, meaning: Meaning) -> Arity:
    """Return 'switch' where a positional argument may follow the flag: `swift infer --merge_lora MODEL`."""
    on_or_off = isinstance(meaning, Default) and bool({"true", "false"} & set(meaning.values))
    return "switch" if on_or_off or flag in _SWITCHES else "optional"
