"""`swift convert CHECKPOINT --model MODEL --out DIR`: a checkpoint of another program becomes one to go on from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from swift.cli.app import run_app


def run(verb: str, args: list[str]) -> int:
    """The verb."""
    return run_app(f"swift {verb}", convert, args)


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Folder that the other program saved")],
    model: Annotated[str, typer.Option(help="The model that training started from: a folder or a name on the hub")],
    out: Annotated[Path, typer.Option("--out", "--output_dir", "--output-dir", help="Destination folder")],
    adapter_config: Annotated[
        Path | None, typer.Option("--adapter-config", help="adapter_config.json, where it is not beside the checkpoint")
    ] = None,
) -> int:
    """Take weights and optimizer state over, so that training goes on under any backend."""
    # Only now: the module imports torch, and a mistake should be answered at once.
    from swift.export.convert import convert_checkpoint

    convert_checkpoint(checkpoint, model=model, out=out, adapter_config=adapter_config, say=_say)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
