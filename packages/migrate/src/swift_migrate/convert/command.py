"""`swift convert CHECKPOINT --out DIR`: import a third-party checkpoint, or export one with --to."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from swift.config.limits import FilePath, Name
from swift.config.options import Aliases, Argument, Section
from swift.errors import CheckpointError, UsageError
from swift.terminal import print_line

FORMATS = "trainer, hf, adapter, or the format of an installed backend"


class ConvertOptions(Section):
    """Imports weights and optimizer state, which any backend can resume; with --to, exports them.

    Reads checkpoints of the Trainer, ms-swift and installed backends, and Hugging Face models or adapters.
    """

    examples = (
        "swift convert output/checkpoint-500 --model qwen3-0.6b --out converted",
        "swift convert output/my-model/v0-20260101-120000 --to trainer --out checkpoint-500",
        "swift convert qwen3-0.6b --expand-blocks 4 --out longer",
    )
    checkpoint: Annotated[FilePath, Argument("CHECKPOINT")] = Field(
        description="Third-party checkpoint folder; with --to, a checkpoint of swift"
    )
    out: Annotated[FilePath, Aliases("output_dir")] = Field(description="Destination folder")
    model: Name | None = Field(
        None, description="Model that training started from: a folder or a hub id; default: as named in the checkpoint"
    )
    to: Name | None = Field(None, description=f"Format to export to: {FORMATS}")
    adapter_config: FilePath | None = Field(None, description="adapter_config.json, if it is not in the folder")
    task: Literal["causal_lm", "seq_cls", "reward", "value", "embedding"] | None = Field(
        None, description="Task of the model (model.task); default: that of the checkpoint"
    )
    expand_blocks: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="Add this many identity blocks to a model (LLaMA Pro)"
    )
    weights_only: bool = Field(False, description="Do not convert the optimizer state")
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the model; only if you trust its author"
    )


class Convert:
    """The command `swift convert`."""

    summary = "Convert checkpoints from and to third-party formats"
    group = "Use the result"
    options_model = ConvertOptions

    def run(self, options: ConvertOptions) -> int:
        """Import the checkpoint, or export it with --to; return the exit code."""
        from swift.checkpoint import is_checkpoint

        path, trusted = options.checkpoint, options.trust_remote_code
        if options.expand_blocks is not None:
            return _expand(options, options.expand_blocks)
        if is_checkpoint(path):
            if options.to is None:
                raise UsageError(f"{path} is already a checkpoint of swift.", hint=f"To export it add --to {FORMATS}.")
            if options.model or options.adapter_config or options.weights_only or options.task:
                raise UsageError(
                    "--to takes no other options than --out and --trust_remote_code.",
                    hint="Leave the other options out.",
                )
            # Only now: these modules import torch, and mistakes should be reported at once.
            from swift_migrate.convert.write import convert_to

            convert_to(path, to=options.to, out=options.out, say=print_line, trust_remote_code=trusted)
            return 0
        if options.to is not None:
            raise UsageError(
                f"--to needs a checkpoint of swift, and {path} is not one.",
                hint="Convert it without --to first, then convert the result.",
            )
        if not path.is_dir():
            raise CheckpointError(f"{path} is not a folder.", hint="Pass the folder that contains the checkpoint.")
        from swift_migrate.convert.run import convert_checkpoint

        convert_checkpoint(
            path,
            model=options.model,
            out=options.out,
            adapter_config=options.adapter_config,
            say=print_line,
            weights_only=options.weights_only,
            trust_remote_code=trusted,
            task=options.task,
        )
        return 0


def _expand(options: ConvertOptions, blocks: int) -> int:
    """Make a model with more blocks."""
    if options.model or options.adapter_config or options.weights_only or options.task or options.to:
        raise UsageError("--expand-blocks takes only a model folder and --out.", hint="Leave the other options out.")
    if not (options.checkpoint / "config.json").is_file():
        raise UsageError(
            f"--expand-blocks needs a model folder, and {options.checkpoint} has no config.json.",
            hint=f"For a run type swift export {options.checkpoint} --to hf first.",
        )
    from swift_migrate.convert.expand import expand_blocks

    trusted = options.trust_remote_code
    expand_blocks(options.checkpoint, blocks=blocks, out=options.out, say=print_line, trust_remote_code=trusted)
    return 0
