"""The words of a command line, grouped: which flag was typed with which values.

A `FlagTable` lists the flags of one command, made from the sections that declare them. `-` and `_` mean the same in
every flag; a flag that is given twice takes the last value, unless it takes a list.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from swift.config.values import as_switch, looks_like_switch, quoted
from swift.errors import ConfigError

if TYPE_CHECKING:
    from swift.config.compat.meanings import Meaning
    from swift.config.fields import Field

Settings = dict[str, Any]
Translation = Callable[[str, Any], Settings]
Arity = Literal["switch", "list", "mapping", "value", "optional", "any", "words"]
"""How many values a flag takes; 'optional' is none or one, 'any' leaves it to the plugin whose key it is, and 'words'
are as many as follow, of another program's flag."""


@dataclass(frozen=True)
class Alias:
    """A flag that is not the name of a key."""

    flag: str
    key: str
    """The key that help lists it under."""
    arity: Arity
    translate: Translation
    """(flag as typed, value) → settings."""
    renames: bool = False
    """Whether it sets its key to its value, as it is."""


@dataclass(frozen=True)
class FlagTable:
    """The flags of a command: how many values each takes, and which key it sets."""

    fields: Mapping[str, Field]
    aliases: Mapping[str, Alias]
    help_command: str
    """What to type to see them all."""
    depth: int = 1
    """Parts of a key: `optim.lr` has two. What lies deeper is a user's own word, such as the name of a column."""
    about_command: Mapping[str, Arity] = field(default_factory=dict)
    """Flags that set no key."""
    open_sections: tuple[str, ...] = ()
    """Sections whose other keys belong to a plugin."""
    ignored: tuple[str, ...] = ()
    elsewhere: Mapping[str, Meaning] = field(default_factory=dict)
    """Flags of other programs, and what each means here."""
    elsewhere_arity: Mapping[str, Arity] = field(default_factory=dict)
    """How many values they take, where a word behind them may also be an argument of the command."""
    takes_word: Callable[[str], bool] = lambda _: False
    """Whether a word may stand without a flag: a configuration file, an argument."""
    passes_on: bool = False
    """Whether unknown flags belong to another program, and are left as they stand."""

    @property
    def sections(self) -> set[str]:
        """First parts of keys of several parts."""
        return {key.partition(".")[0] for key in self.fields if "." in key}

    def name(self, typed: str) -> str:
        """Return the name of a flag as it was typed: without dashes in front, with `_` for `-`."""
        parts = typed.lstrip("-").split(".")
        return ".".join([*(part.replace("-", "_") for part in parts[: self.depth]), *parts[self.depth :]])

    def arity(self, name: str) -> Arity | None:
        """Return how many values a flag takes; None for a flag that the command does not have."""
        if name in self.about_command:
            return self.about_command[name]
        if name in self.aliases:
            return self.aliases[name].arity
        if name in self.fields:
            found = self.fields[name]
            return "optional" if found.bare is not None else found.kind
        if name in self.elsewhere:
            return self.elsewhere_arity.get(name, "words")
        section, dot, _key = name.partition(".")
        if dot and section in self.open_sections:
            return "any"
        return "value" if self.mapping_of(name) else None

    def mapping_of(self, name: str) -> str | None:
        """Return the mapping that a deeper key belongs to: 'data.columns' for 'data.columns.question'."""
        parts = name.split(".")
        key = ".".join(parts[: self.depth])
        found = self.fields.get(key)
        return key if len(parts) > self.depth and found is not None and found.kind == "mapping" else None

    def unknown(self, typed: str) -> ConfigError:
        """Return the error for a flag that nobody knows, with the nearest one."""
        name = self.name(typed)
        names = (*self.aliases, *self.fields)
        leaves = [key for key in names if key == name or key.endswith(f".{name}")]
        short = None if typed.startswith("--") else _SHORT.get(name)
        meant = (short if short in names else None) or (leaves[0] if leaves else None)
        of_every_run = [each for each in names if each not in self.aliases or not self._of_objective(each)]
        meant = meant or nearest_flag(name, (*of_every_run, *self.about_command)) or nearest_flag(name, names)
        suggestion = f" Did you mean '--{meant}'?" if meant else ""
        return ConfigError(f"Unknown flag {typed}.{suggestion}", hint=f"All flags: {self.help_command}")

    def _of_objective(self, alias: str) -> bool:
        """Return whether an alias is for the options of one objective, which few runs have."""
        return self.aliases[alias].key.startswith("objective.")

    def negated(self, name: str) -> str | None:
        """Return the switch that `no_NAME` turns off; None where there is none."""
        switch = name.removeprefix("no_")
        return switch if switch != name and self.arity(switch) == "switch" else None


_SHORT = {"m": "model", "d": "dataset", "o": "output_dir", "c": "config", "n": "nproc"}
"""Letter → flag that other programs shorten to it."""


def nearest_flag(name: str, flags: Iterable[str]) -> str | None:
    """Return the flag that `name` is a slip of: spelled nearly the same, or made of mostly the same words.

    A guess that shares no more than a common word, such as `type` or `steps`, would lead astray.
    """
    known = list(flags)
    for flag in difflib.get_close_matches(name, known, n=3, cutoff=0.6):
        alike = difflib.SequenceMatcher(None, name, flag).ratio()
        if alike >= _SLIP or _shared_words(name, flag) >= _MOST_WORDS:
            return flag
    return None


_SLIP = 0.85
_MOST_WORDS = 2 / 3


def _shared_words(one: str, other: str) -> float:
    """Return how much of the words of two flags is shared; words that differ by a letter or two are the same."""
    words, others = re.split(r"[._]", one), re.split(r"[._]", other)
    shared = sum(bool(difflib.get_close_matches(word, others, n=1, cutoff=0.75)) for word in words)
    return shared / max(len(words), len(others))


@dataclass(frozen=True)
class Flag:
    """One flag with its values, repeated ones joined."""

    typed: str
    """As it was typed, for messages."""
    name: str
    arity: Arity
    value: Any


@dataclass
class CommandLine:
    """Flags and values typed after a command."""

    flags: dict[str, Flag] = field(default_factory=dict)
    """By name, in the order in which they were typed first."""
    words: list[str] = field(default_factory=list)
    """Words that belong to no flag."""
    passed_on: list[str] = field(default_factory=list)
    """Unknown flags with what follows each, where another program takes them."""
    notes: list[str] = field(default_factory=list)
    """What the user should be told."""
    extra: tuple[str, int] | None = None
    """(flag, index) of the last word of a list of several, which may be an argument instead."""


def read_flags(argv: Sequence[str], table: FlagTable) -> CommandLine:
    """Return the flags of a command line, and the words that belong to none."""
    line = CommandLine()
    for group in _groups(argv, table, line.words):
        typed, joined, value = group[0].partition("=")
        name = table.name(typed)
        arity = table.arity(name)
        if name in table.ignored:
            continue
        switch = table.negated(name) if arity is None else None
        if switch is not None:
            given = [value] if joined else group[1:2]
            line.words.extend(_strays(typed, given, group[1:] if joined else group[2:], table))
            _add(line, Flag(typed, switch, "switch", not as_switch(given[0], typed) if given else False))
            continue
        if arity is None:
            if not table.passes_on:
                raise table.unknown(typed)
            line.passed_on.extend(group)
            continue
        if joined and arity == "switch":
            line.words.extend(_strays(typed, [value], group[1:], table))
            _add(line, Flag(typed, name, arity, value))
            continue
        values = [value, *group[1:]] if joined else group[1:]
        _add(line, Flag(typed, name, arity, _value(typed, arity, values, table, line.words)))
    return line


def _add(line: CommandLine, flag: Flag) -> None:
    earlier = line.flags.get(flag.name)
    if flag.arity == "list":
        several = len(flag.value) > 1
        if earlier is not None:
            flag = Flag(flag.typed, flag.name, "list", (*earlier.value, *flag.value))
        if several:
            line.extra = flag.name, len(flag.value) - 1
    elif earlier is not None and earlier.value != flag.value:
        line.notes.append(
            f"{flag.typed} is given twice, as {quoted(earlier.value)} and as {quoted(flag.value)}: the last one counts."
        )
    line.flags[flag.name] = flag


def _groups(argv: Sequence[str], table: FlagTable, words: list[str]) -> Iterator[list[str]]:
    """Yield each flag with the words that follow it."""
    group: list[str] = []
    for word in argv:
        if _is_flag(word) or (table.passes_on and _is_short_flag(word)):
            if group:
                yield group
            group = [word]
        elif _is_short_flag(word):
            raise table.unknown(word)
        elif group:
            group.append(word)
        else:
            words.append(word)
    if group:
        yield group


def _is_flag(word: str) -> bool:
    """Whether a word is a flag; a text with spaces is one only where it names a key, such as a column."""
    name = word.partition("=")[0]
    return word.startswith("--") and len(word) > 2 and (" " not in name or "." in name)


def _is_short_flag(word: str) -> bool:
    letter = word.startswith("-") and len(word) > 1 and word[1].isalpha() and " " not in word
    return letter and word.lower() not in ("-inf", "-infinity", "-nan")


def _value(typed: str, arity: Arity, values: list[str], table: FlagTable, words: list[str]) -> Any:
    if arity == "words":
        words.extend(word for word in values if table.takes_word(word))
        values = [word for word in values if not table.takes_word(word)]
    if arity in ("any", "words"):
        return (values[0] if len(values) == 1 else tuple(values)) if values else True
    if arity == "list":
        if not values:
            raise ConfigError(f"{typed} takes one or more values, and has none.")
        return tuple(values)
    if arity == "switch":
        taken = values[:1] if values and (looks_like_switch(values[0]) or not table.takes_word(values[0])) else []
    else:
        taken = values[:1]
    words.extend(_strays(typed, taken, values[len(taken) :], table))
    if not taken and arity in ("value", "mapping"):
        raise ConfigError(f"{typed} takes a value, and has none.")
    return taken[0] if taken else True


def _strays(typed: str, taken: list[str], strays: list[str], table: FlagTable) -> list[str]:
    """Return the words after the value of a flag, where the command takes words without one."""
    if all(table.takes_word(word) for word in strays):
        return strays
    values = [*taken, *strays]
    raise ConfigError(
        f"{typed} takes one value, and {' '.join(values)!r} are {len(values)}.", hint="Quote a value with spaces."
    )
