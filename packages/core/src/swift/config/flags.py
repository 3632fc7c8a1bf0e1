"""The words of a command line, grouped: which flag was typed with which values. What they mean is decided elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swift.config.aliases import IGNORED, Arity, aliases
from swift.config.fields import core_fields
from swift.config.values import looks_like_switch
from swift.errors import ConfigError, did_you_mean

OPEN_SECTIONS = ("backend", "objective")
"""Sections whose other keys belong to a plugin."""
OWN_FLAGS: dict[str, Arity] = {"config": "value", "nproc": "value", "nproc_per_node": "value"}
"""Flags that are about the command, not about the configuration."""


@dataclass(frozen=True)
class Flag:
    """One flag with its values, repeated ones joined."""

    said: str
    """As it was typed, for messages."""
    name: str
    """Without dashes in front, `_` for `-`."""
    arity: Arity
    value: Any


def read_flags(argv: Sequence[str]) -> tuple[list[Flag], list[str]]:
    """The flags, and the words that belong to none."""
    flags: dict[str, Flag] = {}
    rest: list[str] = []
    for said, values in _group(argv, rest):
        name = _name(said)
        if name in IGNORED:
            continue
        flag = _flag(said, name, values, rest)
        earlier = flags.get(name)
        if earlier is None:
            flags[name] = flag
        elif flag.arity == "list":
            flags[name] = Flag(said, name, "list", (*earlier.value, *flag.value))
        elif earlier.value != flag.value:
            raise ConfigError(f"{said} is given twice, as {earlier.value!r} and as {flag.value!r}.", hint="Keep one.")
    return list(flags.values()), rest


def unknown(said: str) -> ConfigError:
    """The error for a flag that nobody knows, with the nearest one."""
    name = _name(said)
    leaves = [f"--{key}" for key in (*aliases(), *core_fields()) if key == name or key.endswith(f".{name}")]
    known = [f"--{flag}" for flag in (*aliases(), *core_fields(), *OWN_FLAGS)]
    suggestion = f" Did you mean {leaves[0]!r}?" if leaves else did_you_mean(f"--{name}", known)
    return ConfigError(f"Unknown flag {said}.{suggestion}", hint="All flags: swift sft --help")


def _name(said: str) -> str:
    """`_` for `-` in sections and keys; what lies deeper is a user's own word, such as the name of a column."""
    section, *rest = said.lstrip("-").split(".")
    return ".".join([section.replace("-", "_"), *(part.replace("-", "_") for part in rest[:1]), *rest[1:]])


def _group(argv: Sequence[str], rest: list[str]) -> list[tuple[str, list[str]]]:
    groups: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            said, separator, value = word.partition("=")
            groups.append((said, [value] if separator else []))
        elif _is_short_flag(word):
            raise unknown(word)
        elif groups:
            groups[-1][1].append(word)
        else:
            rest.append(word)
    return groups


def _is_short_flag(word: str) -> bool:
    letter = word.startswith("-") and len(word) > 1 and word[1].isalpha() and " " not in word
    return letter and word.lower() not in ("-inf", "-infinity", "-nan")


def _flag(said: str, name: str, values: list[str], rest: list[str]) -> Flag:
    arity = _arity(said, name)
    if arity == "any":
        return Flag(said, name, arity, (values[0] if len(values) == 1 else tuple(values)) if values else True)
    if arity == "list":
        if not values:
            raise ConfigError(f"{said} takes one or more values, and has none.")
        return Flag(said, name, arity, tuple(values))
    if arity == "switch":
        taken = values[:1] if values and (looks_like_switch(values[0]) or not _is_config_file(values[0])) else []
    else:
        taken = values[:1]
    stray = values[len(taken) :]
    if any(not _is_config_file(word) for word in stray):
        raise ConfigError(
            f"{said} takes one value, and {' '.join(values)!r} are {len(values)}.", hint="Quote a value with spaces."
        )
    rest.extend(stray)
    if not taken and arity in ("value", "mapping"):
        raise ConfigError(f"{said} takes a value, and has none.")
    return Flag(said, name, arity, taken[0] if taken else True)


def _is_config_file(word: str) -> bool:
    return word.endswith((".yaml", ".yml"))


def _arity(said: str, name: str) -> Arity:
    if name in OWN_FLAGS:
        return OWN_FLAGS[name]
    alias = aliases().get(name)
    if alias is not None:
        return alias.arity
    field = core_fields().get(name)
    if field is not None:
        return field.kind
    section, dot, _key = name.partition(".")
    if dot and section in OPEN_SECTIONS:
        return "any"
    if mapping_of(name):
        return "value"
    raise unknown(said)


def mapping_of(name: str) -> str | None:
    """The mapping that a deeper key belongs to: 'data.columns' for 'data.columns.question'."""
    parts = name.split(".")
    key = ".".join(parts[:2])
    field = core_fields().get(key)
    return key if len(parts) > 2 and field is not None and field.kind == "mapping" else None
