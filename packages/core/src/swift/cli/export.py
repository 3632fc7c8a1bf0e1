"""`swift export CHECKPOINT --to NAME --out DIR`, and `swift merge-lora`, which is `--to hf`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from swift.cli.help import asks_for_help, show_help
from swift.cli.options import flag_table, read_options
from swift.config.flags import read_flags
from swift.config.limits import FilePath, Name
from swift.config.options import Aliases, Argument
from swift.config.sections import Dtype, ExportOptions
from swift.errors import CheckpointError, UsageError
from swift.export.destination import check_destination, default_destination
from swift.parsing.quantization_flags import check_bits
from swift.terminal import IMPORTS, print_line, waiting
from swift.untrusted import shown, typed_path


class ExportCommandOptions(ExportOptions):
    """Verifies every export against the training state before it is complete."""

    examples = ("swift export output/my-model/v1-20260101-120000 --to hf --out exported",)
    checkpoint: Annotated[Name | None, Argument("RUN_OR_CHECKPOINT"), Aliases("adapters", "ckpt_dir")] = Field(
        None, description="Folder or URL of a run (its last checkpoint), a checkpoint or a model"
    )
    model: Name | None = Field(
        None, description="Model folder to export; with a checkpoint, the current folder of its base model"
    )
    to: Name = Field("hf", description="hf (merged), adapter, or an installed exporter")
    out: Annotated[FilePath | None, Aliases("output_dir")] = Field(
        None, description="Destination folder; default: next to the checkpoint"
    )
    dtype: Annotated[Dtype, Aliases("torch_dtype")] = Field(
        "auto", description="Precision of the exported weights; auto is the model's own"
    )
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the model; only if you trust its author"
    )
    quant_bits: int | None = Field(None, description="Bits per weight, checked against --quant")
    push_to_hub: bool | None = Field(None, description="Upload to --push; false skips the upload")


class MergeLoraOptions(ExportCommandOptions):
    """Same as swift export --to hf."""

    examples = ("swift merge-lora output/my-model/v1-20260101-120000 --out merged",)
    to: Literal["hf"] = Field("hf", description="Format of the merged weights")


class ExportCommand:
    """Implements `swift.contracts.Command`."""

    group = "Use the result"
    summary = "Write a checkpoint as a model folder, and check it"
    options_model = ExportCommandOptions
    parses_args = True

    def run(self, args: Sequence[str]) -> int:
        options = export_options(args)
        if asks_for_help(args):
            show_help("export", self.summary, options)
            return 0
        return export(read_options("export", args, options).options)


class MergeLoraCommand:
    """Implements `swift.contracts.Command`."""

    group = "Use the result"
    summary = "Merge adapters into the model's weights"
    options_model = MergeLoraOptions

    def run(self, options: MergeLoraOptions) -> int:
        return export(options)


def export_options(args: Sequence[str]) -> type[ExportCommandOptions]:
    """Return the options of the command, with those of the exporter that `--to` names, if it is installed."""
    if not any(arg.startswith("--to") for arg in args):
        return ExportCommandOptions  # plugins are not imported for help
    to = read_flags(args, flag_table("export", ExportCommandOptions, passes_on=True)).flags.get("to")
    from swift.plugins.discover import plugin_names
    from swift.plugins.load import load_exporter

    name = "" if to is None else str(to.value)
    model = load_exporter(name).config_model if name in plugin_names("swift.exporters") else None
    if model is None:
        return ExportCommandOptions
    members = {"__doc__": ExportCommandOptions.__doc__, "__module__": __name__}
    both: type[ExportCommandOptions] = type("ExportCommandOptions", (ExportCommandOptions, model), members)
    return both


def export(options: ExportCommandOptions) -> int:
    """Export a checkpoint or a model folder, and verify it."""
    options = _pushed(ExportCommandOptions.model_validate(options.model_dump()))  # the exporter's own become extras
    checkpoint, _ = check_export(options)
    # Only now: the module imports torch, and mistakes should be reported at once.
    with waiting(IMPORTS):
        from swift.models.quiet import quiet_libraries

        quiet_libraries()
        from swift.export.run import export_checkpoint

    export_checkpoint(
        checkpoint,
        to=options.to,
        options=options,
        say=print_line,
        trust_remote_code=options.trust_remote_code,
        model=None if options.checkpoint is None else options.model,
    )
    return 0


def check_export(options: ExportCommandOptions) -> tuple[Path, Path]:
    """Return the source and the destination; raise errors that can be found before anything is loaded."""
    from swift.plugins.load import find
    from swift.plugins.schemes import find_scheme

    checkpoint = _check_source(options)
    find("swift.exporters", options.to)
    check_bits(options.quant_bits, options.quant)
    if options.quant is not None:
        find_scheme(options.quant, options.to)
    destination = _destination(checkpoint, options)
    check_destination(destination, options)
    return checkpoint, destination


def _check_source(options: ExportCommandOptions) -> Path:
    """Return the source; raise `UsageError` where none is given."""
    if options.checkpoint is not None:
        return _on_this_machine(options.checkpoint, options)
    if options.model is not None:
        return Path(options.model)
    raise UsageError(
        "swift export needs RUN_OR_CHECKPOINT, the folder of a run, a checkpoint or a model.",
        hint=f"For example: {options.examples[0]}",
    )


def _on_this_machine(name: str, options: ExportCommandOptions) -> Path:
    """Return the local folder; a URL is downloaded, and needs --out."""
    from swift.checkpoint.copies import on_this_machine
    from swift.remote.urls import is_remote

    if is_remote(name) and options.out is None:
        raise UsageError(f"Exporting from the URL '{shown(name)}' needs --out.", hint="Type: --out FOLDER")
    return typed_path(on_this_machine(name), "The checkpoint", CheckpointError)


def _pushed(options: ExportCommandOptions) -> ExportCommandOptions:
    """Return the options with `push` adapted to `push_to_hub`."""
    if options.push_to_hub and options.push is None:
        raise UsageError("--push_to_hub needs a repository.", hint="Type: --push OWNER/NAME")
    return options.model_copy(update={"push": None}) if options.push_to_hub is False else options


def _destination(source: Path, options: ExportCommandOptions) -> Path:
    """Return the destination; raise `CheckpointError` where the source is neither a model nor a checkpoint."""
    from swift.checkpoint.folders import find_checkpoint, is_checkpoint

    path = typed_path(str(source), "The checkpoint", CheckpointError)
    trained = is_checkpoint(path) or not (path / "config.json").exists()
    folder = find_checkpoint(path) if trained else path.resolve()
    return options.out or default_destination(folder, to=options.to, quant=options.quant, is_checkpoint=trained)
