"""`swift convert CHECKPOINT --out DIR`: a checkpoint of another program becomes one to go on from, or the reverse."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from swift.cli.app import TrustRemoteCode, run_app
from swift.errors import UsageError

FORMATS = "trainer, deepspeed, megatron, hf or adapter"


def run(verb: str, args: list[str]) -> int:
    """The verb."""
    return run_app(f"swift {verb}", convert, args)


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Folder that the other program saved; with --to, one of swift's")],
    out: Annotated[Path, typer.Option("--out", "--output_dir", "--output-dir", help="Destination folder")],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that training started from: a folder or a name on the hub; may be left out where the "
            "checkpoint says it"
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(help=f"What a checkpoint of swift becomes: {FORMATS}, or what a backend writes")
    ] = None,
    adapter_config: Annotated[
        Path | None, typer.Option("--adapter-config", help="adapter_config.json, where it is not beside the checkpoint")
    ] = None,
    weights_only: Annotated[
        bool, typer.Option("--weights-only", "--weights_only", help="Leave the optimizer's state behind")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Take weights and optimizer state over, so that training goes on under any backend; with --to, hand them back.

    Read are checkpoints of the Hugging Face Trainer, ms-swift, DeepSpeed and Megatron, and models and adapters.
    """
    # Only now: these modules import torch.
    from swift.checkpoint.folders import is_checkpoint

    if is_checkpoint(checkpoint):
        if to is None:
            raise UsageError(f"{checkpoint} is a checkpoint of swift already.", hint=f"Add --to {FORMATS}.")
        if model or adapter_config or weights_only:
            raise UsageError("With --to, the checkpoint itself says all else.", hint="Leave the other options out.")
        from swift.convert.write import convert_to

        convert_to(checkpoint, to=to, out=out, say=_say, trust_remote_code=trust_remote_code)
        return 0
    if to is not None:
        raise UsageError(
            f"{checkpoint} is no checkpoint of swift, which --to starts from.",
            hint="Convert it without --to first, and then what comes out.",
        )
    from swift.convert.run import convert_checkpoint

    convert_checkpoint(
        checkpoint,
        model=model,
        out=out,
        adapter_config=adapter_config,
        say=_say,
        weights_only=weights_only,
        trust_remote_code=trust_remote_code,
    )
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
