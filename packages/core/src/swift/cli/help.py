"""Help of a command: every option in groups, with its type, its default and its flags.

It uses the standard library only: importing a terminal library would take longer than printing the help.
"""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swift.cli.commands import commands
from swift.config.fields import Field, core_fields, model_fields
from swift.config.options import examples_of
from swift.errors import ConfigError, SwiftError, UsageError, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel

HELP = ("-h", "--help")
ALL = "all"
"""The value of `--help` that lists every flag."""
MOST_USED = (
    *("model.path", "model.dtype"),
    *("data.train", "data.validation", "data.split_ratio", "data.max_length", "data.packing"),
    *("tuner.kind", "tuner.rank", "tuner.alpha", "tuner.targets", "tuner.dropout", "tuner.quantize"),
    *("objective.name", "objective.reward_funcs", "objective.num_generations", "objective.max_completion_length"),
    *("objective.loss_type", "objective.advantage_estimator", "objective.temperature", "objective.rollout_engine"),
    *("objective.beta", "objective.epsilon", "objective.epsilon_high", "objective.num_iterations"),
    *("optim.lr", "optim.schedule", "optim.warmup_ratio"),
    *("train.epochs", "train.max_steps", "train.micro_batch", "train.accumulation", "train.global_batch"),
    *("train.gradient_checkpointing", "train.eval_steps", "train.seed"),
    *("checkpoint.save_steps", "checkpoint.keep", "checkpoint.resume", "logging.output", "logging.run_name"),
    *("parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep", "backend.name"),
)
"""Keys that help shows first in their section, in this order; the short help of training shows no others."""

_ANSI = {"bold": "1", "dim": "2", "green": "32", "yellow": "33", "cyan": "36"}
_DIM, _PLAIN, _BOLD = "\x01", "\x02", "\x03"
"""Placeholders for escape sequences while text is wrapped, which would count as letters."""


@dataclass(frozen=True)
class FlagGroup:
    """Options under one title."""

    title: str
    summary: str
    fields: Sequence[Field]
    flags: Sequence[Sequence[str]]
    """For each field, the further flags that set it."""
    names: Sequence[str] = ()
    """The name of each field; default: its argument or its key."""
    others: Sequence[Sequence[str]] = ()
    """For each field, the flags that set one of its values, or translate theirs."""


def asks_for_help(args: Iterable[str]) -> bool:
    """Return whether the arguments request help."""
    return any(arg.partition("=")[0] in HELP for arg in args)


def show_help(command: str, summary: str, options: type[BaseModel]) -> None:
    """Print the help of a command with its class of options."""
    fields = list(model_fields(options))
    arguments = [field for field in fields if field.argument]
    positional = "".join(f" {each.argument}" if each.required else f" [{each.argument}]" for each in arguments)
    _line(f"{_styled(f'swift {command}', 'bold')}: {summary}")
    _line(f"\n{_styled('Usage', 'bold')}  swift {command}{positional} [flags]\n")
    _paragraphs(inspect.cleandoc(options.__doc__ or ""))
    if examples := examples_of(options):
        _line("\n" + "\n".join(f"  {each}" for each in examples))
    notes = ["In flags, - and _ mean the same."]
    if any(field.kind == "list" for field in fields):
        notes.append("Flags that take a list may be repeated; for all others the last value counts.")
    _line()
    _paragraphs(" ".join(notes))
    for group in groups_of(options):
        _show_group(group)


def groups_of(options: type[BaseModel]) -> list[FlagGroup]:
    """Return the options of a command, grouped by the class that declares them; the command's own come first."""
    fields = {field.key: field for field in model_fields(options)}
    names = {info.alias or name: name for name, info in options.model_fields.items()}
    by_class: dict[type, list[Field]] = {options: []}
    for key, field in sorted(fields.items(), key=lambda each: each[1].argument is None):
        owner = next(each for each in options.__mro__ if names[key] in vars(each).get("__annotations__", {}))
        by_class.setdefault(owner, []).append(field)
    return [
        FlagGroup("" if owner is options else _first_line(owner), "", own, [field.flags for field in own])
        for owner, own in sorted(
            by_class.items(), key=lambda each: (each[0] is not options, -options.__mro__.index(each[0]))
        )
        if own
    ]


def show_training_help(command: str, args: Sequence[str]) -> None:
    """Print the help of a training command, with the options of the plugins that `args` select.

    `--help` shows the most used flags, `--help SECTION` those of one section, and `--help all` every flag.
    """
    from swift.config.sections import Config
    from swift.plugins.kinds import group_of_section

    shown, args = _section_and_rest(args)
    if shown not in ("", ALL, *Config.model_fields):
        raise UsageError(
            f"There is no section {shown!r} of flags.{did_you_mean(shown, Config.model_fields)}",
            hint=f"Sections: {', '.join(Config.model_fields)}. Every flag: swift {command} --help {ALL}",
        )
    info = commands()[command]
    _line(f"{_styled(f'swift {command}', 'bold')}: {info.summary}")
    _line(f"\n  {info.example}\n  swift {command} config.yaml --optim.lr 2e-5\n")
    _paragraphs(
        "Flags take precedence over a configuration file. In flags, - and _ mean the same. --nproc N starts N "
        "processes on this machine. Flags that take a list may be repeated; for all others the last value counts."
    )
    for name, field in Config.model_fields.items():
        if shown not in ("", ALL, name):
            continue
        fields = [each for each in core_fields().values() if each.section == name]
        section: Any = field.annotation
        _show_group(_friendly(name, _first_line(section), fields, short=not shown))
        if (group := group_of_section(name)) is not None:
            _show_plugin(group, name, _chosen(group, name, command, args), short=not shown)
    if not shown:
        typed = shlex.join(["swift", command, *args])
        _line()
        _paragraphs(
            f"These are the most used flags. All flags of a section: {typed} --help SECTION "
            f"({', '.join(Config.model_fields)}). Every flag: {typed} --help {ALL}"
        )


def _section_and_rest(args: Sequence[str]) -> tuple[str, list[str]]:
    """Return the value of `--help`, and the other arguments."""
    wanted, rest, follows = "", [], False
    for arg in args:
        flag, _, value = arg.partition("=")
        if flag in HELP:
            wanted, follows = value or wanted, not value
        elif follows and not arg.startswith("-"):
            wanted, follows = arg, False
        else:
            rest.append(arg)
            follows = False
    return wanted, rest


def _friendly(title: str, summary: str, fields: Iterable[Field], *, short: bool) -> FlagGroup:
    """Return options of training, the most used first, each under its usual flag."""
    from swift.parsing.aliases import flags_of, synonyms_of

    position = {key: number for number, key in enumerate(MOST_USED)}
    ordered = sorted(fields, key=lambda field: position.get(field.key, len(position)))
    if short:
        ordered = [field for field in ordered if field.key in position]
    names, synonyms, others = [], [], []
    for field in ordered:
        first, *rest = (*synonyms_of(field), *field.aliases, field.key)
        names.append(f"--{first}")
        synonyms.append([] if short else rest)
        others.append([] if short else [flag for flag in flags_of(field.key) if flag not in (first, *rest)])
    return FlagGroup(title, summary, ordered, synonyms, names, others)


def _chosen(group: str, section: str, command: str, args: Sequence[str]) -> str:
    """Return the plugin that the arguments select, or the default."""
    from swift.config.draft import Layer
    from swift.config.flags import read_flags
    from swift.parsing.aliases import training_flags
    from swift.parsing.tasks import trained_by
    from swift.plugins.kinds import KINDS

    table = training_flags()
    draft = Layer(table)
    with suppress(ConfigError):  # help must work in spite of invalid flags
        for name, flag in read_flags(args, table).flags.items():
            if name not in table.about_command:
                draft.add_flag(flag)
    selected = f"{section}.{KINDS[group].selected_by}"
    requested = draft.get(selected)
    if requested is not None:
        return str(requested.value)
    if section == "objective":
        task = draft.get("model.task")
        of_task = None if task is None else trained_by(str(task.value))
        if (implied := of_task or trained_by(command)) is not None:
            return implied
    return str(core_fields()[selected].default)


def _show_plugin(group: str, section: str, name: str, *, short: bool) -> None:
    from swift.plugins.load import find, load

    try:
        plugin = load(find(group, name))
    except SwiftError as error:
        _line(_styled(f"  {error}", "yellow"))
        return
    assert plugin.config_model is not None
    shown = core_fields()
    fields = [field for field in model_fields(plugin.config_model, section) if field.key not in shown]
    _show_group(_friendly(f"{section} {name}", f"Options of {plugin.entry}.", fields, short=short))


def _show_group(group: FlagGroup) -> None:
    if not group.fields:
        return
    title = f"{_BOLD}{group.title}{_PLAIN}" if group.title else ""
    if group.summary:
        title += f"  {_DIM}{group.summary}{_PLAIN}"
    _line("\n" + _coded(textwrap.fill(title, _width())) if title else "")
    names = group.names or [field.argument or f"--{field.key}" for field in group.fields]
    left = max(map(len, names), default=0) + 4
    right = max(30, _width() - left)
    others = group.others or [()] * len(names)
    for name, field, flags, partly in zip(names, group.fields, group.flags, others, strict=True):
        default = "required" if field.required else shown_default(field.default)
        kind = f"{field.type_name} {field.bounds}".rstrip() + f"; {default}"
        text = f"{field.description or '(no description)'} {_DIM}[{kind}]{_PLAIN}"
        lines = textwrap.wrap(text, right, break_on_hyphens=False)
        same = [f"--{flag}" for flag in ((field.key, *flags) if field.argument else flags)]
        also = ["also set by", *(f"--{flag}" for flag in partly)] if partly else []
        for listed in (same, also):
            wrapped = textwrap.wrap(" ".join(listed), right, break_on_hyphens=False)
            lines += [_styled(line, "cyan") for line in wrapped]
        for number, each in enumerate(lines):
            column = f"  {name}".ljust(left) if number == 0 else " " * left
            _line(f"{_styled(column, 'green') if number == 0 else column}{_coded(each)}".rstrip())


def shown_default(value: Any) -> str:
    """Return a default as help shows it."""
    if value is None or value in ((), {}, ""):
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)


def _first_line(section: type) -> str:
    return (section.__doc__ or "").split("\n")[0]


def _paragraphs(text: str) -> None:
    for number, paragraph in enumerate(text.split("\n\n")):
        _line("\n" * bool(number) + textwrap.fill(" ".join(paragraph.split()), _width(), break_on_hyphens=False))


def _width() -> int:
    return max(40, shutil.get_terminal_size().columns)


def _on_terminal() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _styled(text: str, style: str) -> str:
    return f"\x1b[{_ANSI[style]}m{text}\x1b[0m" if text and _on_terminal() else text


def _coded(text: str) -> str:
    on = _on_terminal()
    text = text.replace(_BOLD, "\x1b[1m" if on else "").replace(_DIM, "\x1b[2m" if on else "")
    return text.replace(_PLAIN, "\x1b[0m" if on else "")


def _line(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
