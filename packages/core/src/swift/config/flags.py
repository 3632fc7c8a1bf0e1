"""Command lines, split into flags with their values.

A `FlagTable` lists the flags of one command, made from the sections that declare them. `-` and `_` mean the same in
every flag. A flag that is given twice takes the last value, unless it takes a list.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from swift.config.settings import Translation
from swift.config.values import as_switch, clipped, looks_like_switch, quoted
from swift.errors import ConfigError

if TYPE_CHECKING:
    from swift.config.fields import Field
    from swift.config.meanings import Meaning

DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".txt")
"""Files that are data sets."""
Arity = Literal["switch", "list", "mapping", "value", "optional", "any", "rest"]
"""How many values a flag takes: 'optional' is none or one, 'any' leaves it to the plugin that owns the key, and 'rest'
takes all that follow, for a third-party flag."""
TranslatedFlags = tuple[tuple[tuple[str, ...], str, Arity, Translation], ...]
"""(flags, the key under which help lists them, arity, translation)."""


@dataclass(frozen=True)
class Alias:
    """A flag that is not the name of a key."""

    flag: str
    key: str
    """The key under which help lists it."""
    arity: Arity
    translate: Translation
    renames: bool = False
    """Whether it sets its key to its value unchanged."""


@dataclass(frozen=True)
class FlagTable:
    """The flags of a command: how many values each takes, and which key it sets."""

    fields: Mapping[str, Field]
    aliases: Mapping[str, Alias]
    help_command: str
    """The command that lists all flags."""
    depth: int = 1
    """Parts of a key: `optim.lr` has two. Deeper parts are the user's own names, such as columns."""
    about_command: Mapping[str, Arity] = field(default_factory=dict)
    """Flags that set no key."""
    open_sections: tuple[str, ...] = ()
    """Sections whose other keys belong to a plugin."""
    ignored: tuple[str, ...] = ()
    third_party: Mapping[str, Meaning] = field(default_factory=dict)
    """Third-party flags, and what each means here."""
    third_party_arity: Mapping[str, Arity] = field(default_factory=dict)
    """How many values they take, where a positional argument may follow them."""
    takes_positional: Callable[[str], bool] = lambda _: False
    """Whether an argument may be positional: a configuration file, a model."""
    passes_on: bool = False
    """Whether unknown flags are passed on to another command."""

    @property
    def sections(self) -> set[str]:
        """Return the section names: the first parts of dotted keys."""
        return {key.partition(".")[0] for key in self.fields if "." in key}

    def name(self, typed: str) -> str:
        """Return the name of a typed flag: without leading dashes, with `_` for `-`."""
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
        if name in self.third_party:
            return self.third_party_arity.get(name, "rest")
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
        """Return the error for an unknown flag, with the nearest known one."""
        name = self.name(typed)
        names = (*self.aliases, *self.fields)
        leaves = [key for key in names if key == name or key.endswith(f".{name}")]
        short = None if typed.startswith("--") else _SHORT.get(name)
        meant = (short if short in names else None) or (leaves[0] if leaves else None)
        of_every_run = [each for each in names if each not in self.aliases or not self._of_objective(each)]
        meant = meant or nearest_flag(name, (*of_every_run, *self.about_command, "help")) or nearest_flag(name, names)
        suggestion = f" Did you mean '--{meant}'?" if meant else ""
        return ConfigError(f"Unknown flag {typed}.{suggestion}", hint=f"All flags: {self.help_command}")

    def _of_objective(self, alias: str) -> bool:
        """Return whether an alias sets an option of an objective."""
        return self.aliases[alias].key.startswith("objective.")

    def negated(self, name: str) -> str | None:
        """Return the switch that `no_NAME` turns off; None where there is none."""
        switch = name.removeprefix("no_")
        return switch if switch != name and self.arity(switch) == "switch" else None


_SHORT = {"m": "model", "d": "dataset", "o": "output_dir", "c": "config", "n": "nproc"}
"""Letter → the flag for which it is the usual short form."""


def nearest_flag(name: str, flags: Iterable[str]) -> str | None:
    """Return the flag that `name` misspells: nearly the same spelling, or mostly the same parts.

    A suggestion that shares only a common part, such as `type` or `steps`, would mislead.
    """
    known = list(flags)
    for flag in difflib.get_close_matches(name, known, n=3, cutoff=0.6):
        alike = difflib.SequenceMatcher(None, name, flag).ratio()
        if alike >= _TYPO_RATIO or _shared_parts(name, flag) >= _MOST_PARTS:
            return flag
    return None


_TYPO_RATIO = 0.85
_MOST_PARTS = 2 / 3


def _shared_parts(one: str, other: str) -> float:
    """Return the fraction of parts that two flags share; parts that differ by a letter or two are the same."""
    parts, others = re.split(r"[._]", one), re.split(r"[._]", other)
    shared = sum(bool(difflib.get_close_matches(part, others, n=1, cutoff=0.75)) for part in parts)
    return shared / max(len(parts), len(others))


@dataclass(frozen=True)
class Flag:
    """One flag with its values, repeated ones joined."""

    typed: str
    """The flag as typed, for messages."""
    name: str
    arity: Arity
    value: Any


@dataclass
class CommandLine:
    """Flags and values typed after a command."""

    flags: dict[str, Flag] = field(default_factory=dict)
    """By name, in the order in which they were typed first."""
    positional: list[str] = field(default_factory=list)
    """Arguments that belong to no flag."""
    passed_on: list[str] = field(default_factory=list)
    """Unknown flags and their values, where the command passes them on."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user."""
    extra: tuple[str, int] | None = None
    """(flag, index) of the last value of a list, which may be a positional argument instead."""


def read_flags(argv: Sequence[str], table: FlagTable) -> CommandLine:
    """Return the flags and the positional arguments of a command line."""
    line = CommandLine()
    for group in _groups(argv, table, line.positional):
        typed, joined, value = group[0].partition("=")
        name = table.name(typed)
        arity = table.arity(name)
        if name in table.ignored:
            continue
        switch = table.negated(name) if arity is None else None
        if switch is not None:
            given = [value] if joined else group[1:2]
            line.positional.extend(_strays(typed, given, group[1:] if joined else group[2:], table))
            _add(line, Flag(typed, switch, "switch", not as_switch(given[0], typed) if given else False))
            continue
        if arity is None:
            if not table.passes_on:
                raise table.unknown(typed)
            line.passed_on.extend(group)
            continue
        if joined and arity == "switch":
            line.positional.extend(_strays(typed, [value], group[1:], table))
            _add(line, Flag(typed, name, arity, value))
            continue
        values = [value, *group[1:]] if joined else group[1:]
        _add(line, Flag(typed, name, arity, _value(typed, arity, values, table, line.positional)))
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
            f"{flag.typed} is given twice, as {quoted(earlier.value)} and {quoted(flag.value)}; the last one counts."
        )
    line.flags[flag.name] = flag


def _groups(argv: Sequence[str], table: FlagTable, positional: list[str]) -> Iterator[list[str]]:
    """Yield each flag with the arguments that follow it."""
    group: list[str] = []
    for arg in argv:
        if _is_flag(arg) or (table.passes_on and _is_short_flag(arg)):
            if group:
                yield group
            group = [arg]
        elif _is_short_flag(arg):
            raise table.unknown(arg)
        elif group:
            group.append(arg)
        else:
            positional.append(arg)
    if group:
        yield group


def _is_flag(arg: str) -> bool:
    """Return whether an argument is a flag; one with spaces is only where it names a dotted key, such as a column."""
    name = arg.partition("=")[0]
    return arg.startswith("--") and len(arg) > 2 and (" " not in name or "." in name)


def _is_short_flag(arg: str) -> bool:
    letter = arg.startswith("-") and len(arg) > 1 and arg[1].isalpha() and " " not in arg
    return letter and arg.lower() not in ("-inf", "-infinity", "-nan")


def _value(typed: str, arity: Arity, values: list[str], table: FlagTable, positional: list[str]) -> Any:
    if arity == "rest":
        positional.extend(arg for arg in values if table.takes_positional(arg))
        values = [arg for arg in values if not table.takes_positional(arg)]
    if arity in ("any", "rest"):
        return (values[0] if len(values) == 1 else tuple(values)) if values else True
    if arity == "list":
        if not values:
            raise ConfigError(f"{typed} needs at least one value.")
        return tuple(values)
    if arity == "switch":
        taken = values[:1] if values and (looks_like_switch(values[0]) or not table.takes_positional(values[0])) else []
    else:
        taken = values[:1]
    positional.extend(_strays(typed, taken, values[len(taken) :], table))
    if not taken and arity in ("value", "mapping"):
        raise ConfigError(f"{typed} needs a value.")
    return taken[0] if taken else True


def _strays(typed: str, taken: list[str], strays: list[str], table: FlagTable) -> list[str]:
    """Return the arguments after the value of a flag, where the command takes positional arguments."""
    if all(table.takes_positional(arg) for arg in strays):
        return strays
    values = [*taken, *strays]
    data = [each for each in strays if each.endswith(DATA_SUFFIXES)] if table.arity("dataset") else []
    hint = f"Did you mean --dataset {clipped(data[0])}?" if data else "Quote a value that has spaces."
    raise ConfigError(f"{typed} takes one value, not {len(values)}: {' '.join(values)!r}.", hint=hint)
