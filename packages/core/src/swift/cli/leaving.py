"""Commands that move to packages of their own."""

from __future__ import annotations

from swift.cli import convert


class Convert:
    """Implements `swift.contracts.Command`."""

    group = "Use the result"
    summary = "Convert checkpoints from and to third-party formats"
    options_model = convert.ConvertOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return convert.run("convert", args)
