"""`swift export CHECKPOINT --to NAME --out DIR`; `swift merge-lora` is the same with `--to hf`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from swift.cli.options import run_verb
from swift.config.limits import FilePath, Name
from swift.config.options import Aliases, Argument
from swift.config.sections import Dtype, ExportOptions
from swift.errors import CheckpointError
from swift.terminal import IMPORTING, print_line, waiting
from swift.untrusted import typed_path


class ExportVerbOptions(ExportOptions):
    """Every export is checked against the training state before it is complete."""

    examples = ("swift export output/my-model/v1-20260101-120000 --to hf --out exported",)
    checkpoint: Annotated[FilePath, Argument("RUN_OR_CHECKPOINT"), Aliases("adapters")] = Field(
        description="Folder of a run (its last checkpoint), of a checkpoint or of a model"
    )
    to: Name = Field("hf", description="hf (merged), adapter, or an installed exporter")
    out: Annotated[FilePath | None, Aliases("output_dir")] = Field(
        None, description="Destination folder; default: one next to the checkpoint"
    )
    dtype: Annotated[Dtype, Aliases("torch_dtype")] = Field(
        "auto", description="Precision of the exported weights; auto is the model's own"
    )
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the model: only if you trust who made it"
    )


class MergeLoraOptions(ExportVerbOptions):
    """Short for swift export --to hf."""

    examples = ("swift merge-lora output/my-model/v1-20260101-120000 --out merged",)
    to: Literal["hf"] = Field("hf", description="Merged weights are in the format of Hugging Face")


def run(verb: str, args: list[str]) -> int:
    """Run the verbs; returns the exit code."""
    return run_verb(verb, args, MergeLoraOptions if verb == "merge-lora" else ExportVerbOptions, export)


def export(options: ExportVerbOptions) -> int:
    """Write a checkpoint, or a model folder, for others to load, and check it."""
    from swift.plugins.load import find
    from swift.plugins.schemes import find_scheme

    find("swift.exporters", options.to)
    if options.quant is not None:
        find_scheme(options.quant, options.to)
    _check_source(options.checkpoint)
    # Only now: the module imports torch, and a mistake should be answered at once.
    with waiting(IMPORTING):
        from swift.models.quiet import quiet_libraries

        quiet_libraries()
        from swift.export.run import export_checkpoint

    export_checkpoint(
        options.checkpoint,
        to=options.to,
        options=options,
        say=print_line,
        trust_remote_code=options.trust_remote_code,
    )
    return 0


def _check_source(folder: Path) -> None:
    """Raise `CheckpointError` where there is neither a model nor a checkpoint."""
    from swift.checkpoint.folders import find_checkpoint, is_checkpoint

    path = typed_path(str(folder), "The checkpoint", CheckpointError)
    if is_checkpoint(path) or not (path / "config.json").exists():
        find_checkpoint(path)
