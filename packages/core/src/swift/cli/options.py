"""From the arguments of a command to its options, a model whose fields are the flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

from swift.cli.commands import commands
from swift.config.fields import model_fields
from swift.config.flags import Alias, CommandLine, Flag, FlagTable, read_flags
from swift.config.options import examples_of
from swift.config.settings import Set, renamed, when_on
from swift.errors import UsageError
from swift.parsing.plugin_flags import flags_of_command

if TYPE_CHECKING:
    from pydantic import BaseModel

    from swift.config.draft import Layer

S = TypeVar("S", bound="BaseModel")


@dataclass(frozen=True)
class Typed(Generic[S]):
    """Arguments typed after a command."""

    options: S
    passed_on: tuple[str, ...]
    """Unknown flags, for a command that passes them on."""
    positional: tuple[str, ...]
    """Other positional arguments, for a command that passes them on."""


def read_options(command: str, args: Sequence[str], options: type[S], *, passes_on: bool = False) -> Typed[S]:
    """Return the validated options of a command; errors name the flag as typed."""
    table = flag_table(command, options, passes_on)
    line = read_flags(args, table)
    layer = _assigned(line, table)
    missing = [field for field in table.fields.values() if field.required and field.key not in layer.assignments]
    if missing:
        needs = " and ".join(f"{field.argument or f'--{field.key}'} ({field.description})" for field in missing)
        raise UsageError(f"swift {command} needs {needs}.", hint=_example(command, options))
    if line.positional and not passes_on:
        raise UsageError(f"Unexpected argument {line.positional[0]!r}.", hint=f"All flags: swift {command} --help")
    for note in (*line.notes, *layer.notes):
        sys.stderr.write(f"Note: {note}\n")
    return Typed(_validated(options, layer, table), tuple(line.passed_on), tuple(line.positional))


def options_of(command: str) -> type[BaseModel] | None:
    """Return the class whose fields are the flags of a command; None for the commands that train."""
    from swift.plugins.load import load

    options: type[BaseModel] | None = getattr(load(commands()[command].entry).object, "options_model", None)
    return options


def _validated(options: type[S], layer: Layer, table: FlagTable) -> S:
    from pydantic import ValidationError

    from swift.config.problems import config_error

    try:
        return options.model_validate(layer.nested())
    except ValidationError as problem:
        raise config_error(problem, layer.source, table.fields) from None


@cache
def flag_table(command: str, options: type[BaseModel], passes_on: bool = False) -> FlagTable:
    """Return the flags that the options of a command declare."""
    fields = {field.key: field for field in model_fields(options)}
    aliases = {}
    for key, field in fields.items():
        for flag in field.aliases:
            aliases[flag] = Alias(
                flag, key, "optional" if field.bare is not None else field.kind, renamed(key), renames=True
            )
        for short in field.shorthands:
            aliases[short.flag] = Alias(short.flag, key, "switch", when_on(Set(key, short.value)))
        for flag, part in field.parts:
            aliases[flag] = Alias(flag, f"{key}.{part}", "optional", renamed(f"{key}.{part}"))
    takes_positional = passes_on or any(field.argument for field in fields.values())
    others = flags_of_command(command, but={*fields, *aliases})
    return FlagTable(
        fields,
        aliases,
        f"swift {command} --help",
        third_party=others.meanings,
        third_party_arity=others.arities,
        takes_positional=lambda _: takes_positional,
        passes_on=passes_on,
    )


def _assigned(line: CommandLine, table: FlagTable) -> Layer:
    """Return the keys that flags and arguments set; other positional arguments stay in `line`."""
    from swift.config.draft import Layer

    given = {table.aliases[name].key if name in table.aliases else name for name in line.flags}
    free = [field for field in table.fields.values() if field.argument and field.key not in given]
    if free and not line.positional and line.extra is not None:
        _free_last_value(line, *line.extra)
    layer = Layer(table)
    for flag in line.flags.values():
        layer.add_flag(flag)
    for field in [each for each in table.fields.values() if each.argument]:
        if line.positional:
            taken = tuple(line.positional) if field.kind == "list" else line.positional[0]
            layer.set(field.key, taken, str(field.argument))
            del line.positional[: len(taken) if isinstance(taken, tuple) else 1]
    return layer


def _free_last_value(line: CommandLine, name: str, index: int) -> None:
    """Read the last value of a list as the positional argument: `swift infer --dataset a.jsonl MODEL`."""
    flag = line.flags[name]
    line.positional.append(flag.value[index])
    line.flags[name] = Flag(flag.typed, name, "list", (*flag.value[:index], *flag.value[index + 1 :]))


def _example(command: str, options: type[BaseModel]) -> str:
    examples = examples_of(options)
    return f"For example: {examples[0]}" if examples else f"All flags: swift {command} --help"
