"""Verbs with a few fixed options are typer functions; this runs one of them and answers its exit code."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

_FLAG = re.compile(r"--?[a-zA-Z]")

TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust_remote_code",
        "--trust-remote-code",
        help="Run Python code that comes with the model: only if you trust who made it",
    ),
]


def run_app(name: str, function: Callable[..., int], args: Sequence[str]) -> int:
    """Run `function` on `args`. Typer prints its own usage errors (exit 2); a `SwiftError` goes on to the caller."""
    command = typer.main.get_command(_app(function))
    try:
        command.main(args=_plain_switches(command, args), prog_name=name)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    return 0


def _plain_switches(command: Any, args: Sequence[str]) -> list[str]:
    """Returns the words with `--switch true` as `--switch` and without `--switch false`, as `swift sft` takes them."""
    switches = {each for option in command.params if getattr(option, "is_flag", False) for each in option.opts}
    words: list[str] = []
    for word in args:
        switch, joined, value = word.partition("=")
        if joined and switch in switches:
            words.append(switch)
            word = value
        if not words or words[-1] not in switches or word.lower() not in ("true", "false"):
            words.append(word)
        elif word.lower() == "false":
            words.pop()
    return words


def split_unknown(function: Callable[..., int], args: Sequence[str]) -> tuple[list[str], list[str]]:
    """(words of the verb itself, flags that it does not know with all that follows each up to the next flag)."""
    takes_value = {"--help": False}
    for option in typer.main.get_command(_app(function)).params:
        spellings = (*option.opts, *option.secondary_opts) if option.param_type_name == "option" else ()
        takes_value.update({spelling: not getattr(option, "is_flag", False) for spelling in spellings})
    own: list[str] = []
    unknown: list[str] = []
    current, value_follows = own, False
    for word in args:
        flag, has_value, _ = word.partition("=")
        if value_follows or not _FLAG.match(word):
            value_follows = False
        elif flag in takes_value:
            current, value_follows = own, takes_value[flag] and not has_value
        else:
            current = unknown
        current.append(word)
    return own, unknown


def _app(function: Callable[..., int]) -> typer.Typer:
    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> None:
        raise typer.Exit(function(*arguments, **options))

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    return app
