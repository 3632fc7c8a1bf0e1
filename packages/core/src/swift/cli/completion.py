"""Shell completion: scripts for bash, zsh and fish, which call `swift --complete ARGS` for each completion."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from swift.cli.commands import TRAINING, command_name, commands, objective_named
from swift.config.flags import FlagTable
from swift.errors import SwiftError, UsageError
from swift.plugins.discover import objective_names, plugin_names

COMPLETE, SHOW, INSTALL = "--complete", "--show-completion", "--install-completion"
_GLOBAL = {
    "--help": "List all commands",
    "--version": "Print the version",
    INSTALL: "Set up completion for bash, zsh or fish",
    SHOW: "Print the completion script of a shell",
}
_CONFIG_ACTIONS = ("show", "validate", "import", "schema")
_LONGEST = 80
"""Characters of a description."""
_BASH = """\
_swift() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\\t'*}")
    done < <("$1" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _swift swift
"""
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_swift() {
    local line
    local -a found
    for line in ${(f)"$($words[1] --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"}; do
        found+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done
    if (( $#found )); then _describe swift found; else _files; fi
}
compdef _swift swift
"""
_FISH = """\
function __swift_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found ($words[1] --complete $words[2..] "$current" 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete --command swift --no-files --arguments '(__swift_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""Shell → its completion script. Without completions of swift they complete the names of files."""


def run(argv: Sequence[str]) -> int:
    """Run one of the three flags of this module."""
    flag, *args = argv
    if flag == COMPLETE:
        with suppress(SwiftError):
            sys.stdout.write("".join(f"{value}\t{about}\n" for value, about in completions(args)))
        return 0
    shell = args[0] if args else Path(os.environ.get("SHELL", "")).name
    if shell not in SCRIPTS:
        raise UsageError(
            f"There is no completion for {shell or 'this shell'}.", hint=f"Type: swift {flag} bash|zsh|fish"
        )
    sys.stdout.write(SCRIPTS[shell] if flag == SHOW else install(shell))
    return 0


def install(shell: str) -> str:
    """Write the script where the shell finds it; return what was done."""
    home = Path.home()
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        script, started = config / "fish" / "completions" / "swift.fish", None
    else:
        data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
        script, started = data / "swift" / f"completion.{shell}", home / f".{shell}rc"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(SCRIPTS[shell], encoding="utf-8")
    done = f"Written: {script}\n"
    if started is not None:
        line = f"source '{script}'\n"
        existing = started.read_text(encoding="utf-8") if started.exists() else ""
        if line not in existing:
            separator = "" if not existing or existing.endswith("\n") else "\n"
            started.write_text(f"{existing}{separator}{line}", encoding="utf-8")
            done += f"Added to {started}: {line}"
    return f"{done}Open a new shell to use it.\n"


def completions(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what the last argument may become, and a description; nothing for files."""
    *before, current = [each for each in args if each != "="] if args[-1:] != ["="] else [*args[:-1], ""]
    if not before:
        yield from _starting(current, _GLOBAL if current.startswith("-") else _commands())
        return
    command = command_name(before[0])
    table = _flags(command)
    flag, equals, value = current.partition("=")
    if current.startswith("-") and not equals:
        yield from _flags_starting(current, table)
    elif current.startswith("-"):
        yield from ((f"{flag}={each}", "") for each in _values(flag, table) if each.startswith(value))
    elif before[-1].startswith("-"):
        yield from _starting(current, dict.fromkeys(_values(before[-1], table), ""))
    elif command == "config" and len(before) == 1:
        yield from _starting(current, dict.fromkeys(_CONFIG_ACTIONS, ""))


def _commands() -> dict[str, str]:
    objectives = {command_name(name): f"Train with --objective {name}" for name in objective_names()}
    return {**objectives, **{name: each.summary for name, each in commands().items()}}


def _flags(command: str) -> FlagTable:
    """Return the flags of a command; of `swift config` those of training, which it takes too."""
    if command in (*TRAINING, "config") or objective_named(command) is not None:
        from swift.parsing.aliases import training_flags

        return training_flags()
    from swift.cli.options import flag_table, options_of

    options = options_of(command) if command in commands() else None
    return FlagTable({}, {}, "") if options is None else flag_table(command, options)


def _flags_starting(typed: str, table: FlagTable) -> Iterator[tuple[str, str]]:
    """Yield one flag for each option or, where none begins like this, all other spellings of options."""
    usual: dict[str, str] = {}
    for alias in table.aliases.values():
        if alias.renames and "." in alias.key:  # elsewhere the key itself is the usual flag
            usual.setdefault(alias.key, alias.flag)
    about = {key: field.description[:_LONGEST] for key, field in table.fields.items() if not field.argument}
    every = {**{key: key for key in about}, **{flag: alias.key for flag, alias in table.aliases.items()}}
    first = {usual.get(key, key): key for key in about}
    typed = typed.lstrip("-")
    hyphens = "-" in typed
    for names in (first, every):
        found = [name for name in names if name.startswith(table.name(typed))]
        for name in found:
            shown = name.replace("_", "-") if hyphens else name
            yield f"--{shown}", about.get(names[name], "")
        if found:
            return


def _values(flag: str, table: FlagTable) -> Iterable[str]:
    """Return the valid values of a flag, where they can be listed."""
    name = table.name(flag)
    key = table.aliases[name].key if name in table.aliases else name
    group = _selections().get(key)
    if group is not None:
        return plugin_names(group)
    if table.arity(name) == "switch":
        return ("true", "false")
    return table.fields[key].choices if key in table.fields else ()


def _selections() -> dict[str, str]:
    """Return the keys that select a plugin: key → group of entry points."""
    from swift.plugins.kinds import KINDS

    return {f"{kind.section}.{kind.selected_by}": group for group, kind in KINDS.items() if kind.section}


def _starting(current: str, found: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((value, about) for value, about in found.items() if value.startswith(current))
