"""From the words after a command to its options: a section whose fields are the flags."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from swift.cli.builtin import BUILTIN_COMMANDS
from swift.cli.help import asks_for_help, show_help
from swift.config.compat.commands import elsewhere
from swift.config.fields import model_fields
from swift.config.flags import Alias, CommandLine, Flag, FlagTable, Translation, read_flags
from swift.config.options import Shorthand, examples_of
from swift.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from swift.config.draft import Draft

S = TypeVar("S", bound="BaseModel")


@dataclass(frozen=True)
class Typed(Generic[S]):
    """Flags and values typed after a command."""

    options: S
    passed_on: tuple[str, ...]
    """Flags of another program, where the command hands them on."""
    words: tuple[str, ...]
    """Words without a flag that are no argument, where the command hands them on."""


def run_command(command: str, args: Sequence[str], options: type[S], work: Callable[[S], int]) -> int:
    """Print the help of a command, or do its work with the options that were typed; returns the exit code."""
    if asks_for_help(args):
        show_help(command, BUILTIN_COMMANDS[command].summary, options)
        return 0
    return work(read_options(command, args, options).options)


def read_options(command: str, args: Sequence[str], options: type[S], *, passes_on: bool = False) -> Typed[S]:
    """Return the options of a command, validated; what is wrong names the flag as it was typed."""
    table = flag_table(command, options, passes_on)
    line = read_flags(args, table)
    layer = _assigned(line, table)
    missing = [field for field in table.fields.values() if field.required and field.key not in layer.assignments]
    if missing:
        needs = " and ".join(f"{field.argument or f'--{field.key}'} ({field.description})" for field in missing)
        raise UsageError(f"swift {command} needs {needs}.", hint=_example(command, options))
    if line.words and not passes_on:
        raise UsageError(f"{line.words[0]!r} belongs to no flag.", hint=f"All flags: {table.help_command}")
    for note in (*line.notes, *layer.notes):
        sys.stderr.write(f"Note: {note}\n")
    return Typed(_validated(options, layer, table), tuple(line.passed_on), tuple(line.words))


def options_of(command: str) -> type[BaseModel] | None:
    """Return the class whose fields are the flags of a command; None for the commands that train."""
    declared = BUILTIN_COMMANDS[command]
    module = importlib.import_module(declared.target.partition(":")[0])
    options: type[BaseModel] | None = getattr(module, declared.options) if declared.options else None
    return options


def _validated(options: type[S], layer: Draft, table: FlagTable) -> S:
    from pydantic import ValidationError

    from swift.config.draft import nest, source_of
    from swift.config.problems import config_error

    try:
        return options.model_validate(nest(layer.assignments))
    except ValidationError as problem:
        raise config_error(problem, partial(source_of, layer.assignments), table.fields) from None


@cache
def flag_table(command: str, options: type[BaseModel], passes_on: bool = False) -> FlagTable:
    """Return the flags of a command, as its options declare them."""
    fields = {field.key: field for field in model_fields(options)}
    aliases = {}
    for key, field in fields.items():
        for flag in field.aliases:
            aliases[flag] = Alias(
                flag, key, "optional" if field.bare is not None else field.kind, _renamed(key), renames=True
            )
        for short in field.shorthands:
            aliases[short.flag] = Alias(short.flag, key, "switch", _shortened(key, short))
        for flag, part in field.parts:
            aliases[flag] = Alias(flag, f"{key}.{part}", "optional", _renamed(f"{key}.{part}"))
    takes_words = passes_on or any(field.argument for field in fields.values())
    others = elsewhere(command, but={*fields, *aliases})
    return FlagTable(
        fields,
        aliases,
        f"swift {command} --help",
        elsewhere=others.meanings,
        elsewhere_arity=others.arities,
        takes_word=lambda _: takes_words,
        passes_on=passes_on,
    )


def _assigned(line: CommandLine, table: FlagTable) -> Draft:
    """Return the keys that flags and arguments set; words that are no argument stay in `line`."""
    from swift.config.draft import Draft

    given = {table.aliases[name].key if name in table.aliases else name for name in line.flags}
    free = [field for field in table.fields.values() if field.argument and field.key not in given]
    if free and not line.words and line.extra is not None:
        _free_last_word(line, *line.extra)
    layer = Draft(table)
    for flag in line.flags.values():
        layer.add_flag(flag)
    for field in [each for each in table.fields.values() if each.argument]:
        if line.words:
            taken = tuple(line.words) if field.kind == "list" else line.words[0]
            layer.set(field.key, taken, str(field.argument))
            del line.words[: len(taken) if isinstance(taken, tuple) else 1]
    return layer


def _free_last_word(line: CommandLine, name: str, index: int) -> None:
    """Take the word after the values of a list for the argument: `swift infer --dataset a.jsonl MODEL`."""
    flag = line.flags[name]
    line.words.append(flag.value[index])
    line.flags[name] = Flag(flag.typed, name, "list", (*flag.value[:index], *flag.value[index + 1 :]))


def _example(command: str, options: type[BaseModel]) -> str:
    examples = examples_of(options)
    return f"For example: {examples[0]}" if examples else f"All flags: swift {command} --help"


def _renamed(key: str) -> Translation:
    return lambda _, value: {key: value}


def _shortened(key: str, short: Shorthand) -> Translation:
    from swift.config.values import as_switch

    def translate(source: str, value: Any) -> dict[str, Any]:
        return {key: short.value} if as_switch(value, source) else {}

    return translate
