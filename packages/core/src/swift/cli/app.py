"""Verbs with a few fixed options are typer functions; this runs one of them and answers its exit code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import typer


def run_app(name: str, function: Callable[..., int], args: Sequence[str]) -> int:
    """Run `function` on `args`. Typer prints its own usage errors (exit 2); a `SwiftError` goes on to the caller."""

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> None:
        raise typer.Exit(function(*arguments, **options))

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command)
    try:
        typer.main.get_command(app).main(args=list(args), prog_name=name)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0
    return 0
