"""Commands that move to packages of their own."""

from __future__ import annotations

from typing import Any

from swift.cli import convert, demo


class Convert:
    """Implements `swift.contracts.Command`."""

    group = "Use the result"
    summary = "Convert checkpoints from and to third-party formats"
    options_model = convert.ConvertOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return convert.run("convert", args)


class Demo:
    """Implements `swift.contracts.Command`."""

    group = "Inspect"
    summary = "Train, export and evaluate a tiny model in minutes"
    options_model: Any = demo.DemoOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return demo.run("demo", args)
