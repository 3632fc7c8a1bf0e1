"""The commands of `swift`, core's own among them: entry points of the group `swift.commands`.

What `swift --help` prints of a command is read from its source, so that nothing is imported for it.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from swift.plugins.discover import allowed_plugins, list_plugins, objective_names
from swift.plugins.entry import CORE, PluginEntry
from swift.plugins.known import KNOWN

COMMANDS = "swift.commands"
"""Entry-point group of commands."""
TRAINING = ("pt", "sft", "rlhf", "train")
GROUPS = ("Train", "Use the result", "Inspect")
"""Headings of `swift --help`, in this order; others follow."""
OTHERS = "From plugins"
"""Heading of commands that name none."""

REPLACED_COMMANDS = {name: (f"There is no `swift {name}`.", "Type: swift ui") for name in ("web-ui", "app")}
"""Third-party command without an equivalent → the message, and the hint."""


@dataclass(frozen=True)
class CommandInfo:
    """A command as `swift --help` lists it."""

    name: str
    group: str
    summary: str
    """Empty where the source does not state it."""
    entry: PluginEntry
    example: str = ""
    """Of a command that trains."""


def commands() -> dict[str, CommandInfo]:
    """Return the commands that may be used: name → what help prints, in the order of help."""
    found = [info_of(entry) for entry in allowed_plugins(COMMANDS) if collision(entry) is None]
    rank = {group: number for number, group in enumerate(GROUPS)}
    order = {name: number for number, name in enumerate(TRAINING)}
    found.sort(key=lambda each: (rank.get(each.group, len(rank)), each.group, order.get(each.name, len(order))))
    return {each.name: each for each in found}


def info_of(entry: PluginEntry) -> CommandInfo:
    """Return what the source of a command states of it."""
    stated = {"group": OTHERS, "summary": "", "example": "", **_stated(entry.target)}
    return CommandInfo(command_name(entry.name), stated["group"], stated["summary"], entry, stated["example"])


@cache
def _stated(target: str) -> dict[str, str]:
    """Return the strings that a class, or a module, assigns to names of its own; empty where they cannot be read."""
    module, _, attribute = target.partition("[")[0].replace(" ", "").partition(":")
    try:
        path = _source_of(module)
        body = ast.parse(path.read_bytes()).body if path is not None else []
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    if attribute:
        body = next((each.body for each in body if isinstance(each, ast.ClassDef) and each.name == attribute), [])
    return {
        each.targets[0].id: each.value.value
        for each in body
        if isinstance(each, ast.Assign)
        and isinstance(each.targets[0], ast.Name)
        and isinstance(each.value, ast.Constant)
        and isinstance(each.value.value, str)
    }


def _source_of(module: str) -> Path | None:
    """Return the file of a module without importing its packages."""
    top, *inner = module.split(".")
    loaded = sys.modules.get(top)
    spec = loaded.__spec__ if loaded is not None else PathFinder.find_spec(top) or find_spec(top)
    if spec is None or spec.origin is None:
        return None
    if not inner:
        return Path(spec.origin)
    path = Path(spec.origin).parent.joinpath(*inner)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def collision(entry: PluginEntry) -> str | None:
    """Return why a plugin's command is refused, as the end of a sentence; None where it is valid."""
    if entry.group != COMMANDS or entry.distribution == CORE:
        return None
    name = command_name(entry.name)
    own = (each.name for each in list_plugins(COMMANDS) if each.distribution == CORE)
    if name in map(command_name, (*own, *KNOWN["swift.objectives"], "help", "version")):
        return "has the name of a built-in command, which a plugin cannot replace"
    return None


def training_command(args: list[str], default: str) -> tuple[str, list[str]]:
    """Return the training command that the arguments begin with, if any, and the remaining arguments."""
    if args and args[0] in TRAINING:
        return args[0], args[1:]
    objective = objective_named(args[0]) if args else None
    return (default, args) if objective is None else ("train", ["--objective", objective, *args[1:]])


def objective_named(typed: str) -> str | None:
    """Return the objective that is named instead of a command, as in `swift dpo`; None for other words."""
    return next((name for name in objective_names() if command_name(name) == command_name(typed)), None)


def command_name(typed: str) -> str:
    """Return the name of a typed command: `_` means `-`."""
    return typed.replace("_", "-")
