"""`swift export CHECKPOINT --to hf|adapter --out DIR`, and `swift merge-lora`, which is the same with `--to hf`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from swift.cli.app import run_app
from swift.errors import UsageError
from swift.plugins.load import find


def run(verb: str, args: list[str]) -> int:
    """The verbs."""
    return run_app(f"swift {verb}", merge_lora if verb == "merge-lora" else export, args)


Checkpoint = Annotated[
    Path | None, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="Folder of a run (its last checkpoint) or checkpoint")
]
Adapters = Annotated[Path | None, typer.Option("--adapters", "--checkpoint", help="The same, for ms-swift's users")]
Out = Annotated[Path | None, typer.Option("--out", "--output_dir", "--output-dir", help="Destination folder")]
Dtype = Annotated[
    str, typer.Option("--dtype", "--torch_dtype", "--torch-dtype", help="auto, float32, bfloat16, float16")
]
ShardSize = Annotated[float, typer.Option("--shard-size-gb", "--shard_size_gb", help="Largest safetensors file")]
ExistOk = Annotated[bool, typer.Option("--exist-ok", "--exist_ok", help="Replace an export that is there already")]
Verify = Annotated[bool, typer.Option(help="Reload and compare with the training state")]


def export(
    checkpoint: Checkpoint = None,
    adapters: Adapters = None,
    to: Annotated[str, typer.Option(help="hf (merged), adapter, or an installed exporter")] = "hf",
    out: Out = None,
    dtype: Dtype = "auto",
    shard_size_gb: ShardSize = 5.0,
    exist_ok: ExistOk = False,
    verify: Verify = True,
) -> int:
    """Write a checkpoint as a model folder, and check it against the training state."""
    from pydantic import ValidationError

    from swift.config.problems import config_error
    from swift.config.sections import ExportSection

    path = checkpoint or adapters
    if path is None:
        raise UsageError(
            "swift export needs the folder of a run or a checkpoint.",
            hint="For example: swift export output/my-model/v1-20260101-120000 --to hf --out exported",
        )
    try:
        options = ExportSection.model_validate(
            {
                "to": to,
                "out": out,
                "dtype": dtype,
                "shard_size_gb": shard_size_gb,
                "exist_ok": exist_ok,
                "verify": verify,
            }
        )
    except ValidationError as problem:
        raise config_error(problem, lambda key: f"--{key.replace('_', '-')}", ()) from None
    find("swift.exporters", to)
    # Only now: the module imports torch, and a mistake should be answered at once.
    from swift.export.run import export_checkpoint

    export_checkpoint(path, to=to, options=options, say=_say)
    return 0


def merge_lora(
    checkpoint: Checkpoint = None,
    adapters: Adapters = None,
    out: Out = None,
    dtype: Dtype = "auto",
    shard_size_gb: ShardSize = 5.0,
    exist_ok: ExistOk = False,
    verify: Verify = True,
) -> int:
    """Merge a checkpoint's adapters into the model's weights: swift export --to hf."""
    return export(checkpoint, adapters, "hf", out, dtype, shard_size_gb, exist_ok, verify)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
