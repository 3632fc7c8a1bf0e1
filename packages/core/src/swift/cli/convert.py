"""`swift convert CHECKPOINT --out DIR`: imports a checkpoint of another program, or with --to writes one for it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from swift.cli.options import run_command
from swift.config.limits import FilePath, Name
from swift.config.options import Aliases, Argument, Section
from swift.errors import CheckpointError, UsageError
from swift.terminal import print_line

FORMATS = "trainer, hf, adapter, or what an installed backend writes"


class ConvertOptions(Section):
    """Weights and optimizer state are imported, so that any backend resumes from them; with --to, they are exported.

    Read are checkpoints of the Hugging Face Trainer, of ms-swift and of installed backends, and models and adapters.
    """

    examples = (
        "swift convert output/checkpoint-500 --model qwen3-0.6b --out converted",
        "swift convert output/my-model/v0-20260101-120000 --to trainer --out checkpoint-500",
        "swift convert qwen3-0.6b --expand-blocks 4 --out longer",
    )
    checkpoint: Annotated[FilePath, Argument("CHECKPOINT")] = Field(
        description="Folder that the other program saved; with --to, one of swift's"
    )
    out: Annotated[FilePath, Aliases("output_dir")] = Field(description="Destination folder")
    model: Name | None = Field(
        None,
        description="The model that training started from: a folder or a name on the hub; may be left out where the "
        "checkpoint says it",
    )
    to: Name | None = Field(None, description=f"The format that a checkpoint of swift is written in: {FORMATS}")
    adapter_config: FilePath | None = Field(
        None, description="adapter_config.json, where it is not next to the checkpoint"
    )
    task: Literal["causal_lm", "seq_cls", "reward", "value", "embedding"] | None = Field(
        None, description="What the model returns, as model.task; default: what the checkpoint says"
    )
    expand_blocks: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="Make a model's folder longer by so many blocks that compute nothing yet (LLaMA Pro)"
    )
    weights_only: bool = Field(False, description="Do not convert the optimizer's state")
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the model: only if you trust who made it"
    )


def run(command: str, args: list[str]) -> int:
    """Run the command; returns the exit code."""
    return run_command(command, args, ConvertOptions, convert)


def _expand(options: ConvertOptions, blocks: int) -> int:
    """Make a model with more blocks."""
    if options.model or options.adapter_config or options.weights_only or options.task or options.to:
        raise UsageError("--expand-blocks takes a model's folder and --out.", hint="Leave the other options out.")
    if not (options.checkpoint / "config.json").is_file():
        raise UsageError(
            f"{options.checkpoint} is not a model's folder, which --expand-blocks starts from.",
            hint=f"Of a run: swift export {options.checkpoint} --to hf, and then what that writes.",
        )
    from swift.convert.expand import expand_blocks

    trusted = options.trust_remote_code
    expand_blocks(options.checkpoint, blocks=blocks, out=options.out, say=print_line, trust_remote_code=trusted)
    return 0


def convert(options: ConvertOptions) -> int:
    """Convert in the direction that the checkpoint and --to say."""
    from swift.checkpoint.folders import is_checkpoint

    path, trusted = options.checkpoint, options.trust_remote_code
    if options.expand_blocks is not None:
        return _expand(options, options.expand_blocks)
    if is_checkpoint(path):
        if options.to is None:
            raise UsageError(f"{path} is a checkpoint of swift already.", hint=f"Add --to {FORMATS}.")
        if options.model or options.adapter_config or options.weights_only or options.task:
            raise UsageError("With --to, the checkpoint itself says all else.", hint="Leave the other options out.")
        # Only now: these modules import torch, and a mistake should be answered at once.
        from swift.convert.write import convert_to

        convert_to(path, to=options.to, out=options.out, say=print_line, trust_remote_code=trusted)
        return 0
    if options.to is not None:
        raise UsageError(
            f"{path} is no checkpoint of swift, which --to starts from.",
            hint="Convert it without --to first, and then what comes out.",
        )
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder.", hint="Name the folder that the other program saved.")
    from swift.convert.run import convert_checkpoint

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
