"""`swift config import`: convert a third-party configuration."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field

from swift.cli.help import asks_for_help, show_help
from swift.config.options import Argument, Section
from swift.contracts import Remark
from swift.errors import ConfigError, UsageError
from swift.terminal import print_line

SUMMARY = "Convert a configuration of LLaMA-Factory, axolotl, TRL, ms-swift, the Trainer, torchtune or NeMo"
_NUMBER = Annotated[int, Field(ge=1, le=10_000)]


class ImportOptions(Section):
    """Prints the configuration, or writes it to --out, with a comment for each setting that is not imported.

    The exit code is 1 if a setting that changes the training is not imported, else 0. For a folder, prints a summary of
    each recipe in it.
    """

    examples = (
        "swift config import examples/train_lora/llama3_lora_sft.yaml --out run.yaml",
        'swift config import "trl sft --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara"',
        "swift config import train.sh --number 2 --out second.yaml",
        "swift config import recipes",
    )
    source: Annotated[str, Argument("FILE")] = Field(
        description="YAML or JSON file, shell script, quoted command, or a folder of such files"
    )
    out: Path | None = Field(None, description="File to write; default: standard output")
    number: _NUMBER = Field(1, description="Number of the training command, for scripts with several")
    exist_ok: bool = Field(False, description="Replace an existing file")


def import_configuration(args: list[str]) -> int:
    """Run the command; return the exit code."""
    if not args or asks_for_help(args):
        show_help("config import", SUMMARY, ImportOptions)
        return 0
    options = import_options(args)
    from swift.cli.imported_run import imported, is_there, read_runs

    if is_there(Path(options.source), folder=True):
        return _folder(Path(options.source))
    runs = read_runs(options.source)
    if options.number > len(runs):
        raise UsageError(
            f"--number is {options.number}, but {options.source} has only {len(runs)} training commands."
            if len(runs) > 1
            else f"--number is {options.number}, but {options.source} has one training command."
        )
    result = imported(runs[options.number - 1], str(options.out or "run.yaml"))
    if options.out is None:
        sys.stdout.write(result.text)
    else:
        _write(options.out, result.text, replace=options.exist_ok)
    if len(runs) > 1:
        sys.stderr.write(
            f"Note: this is training command {options.number} of {len(runs)}; --number N selects another.\n"
        )
    _report(result.lost, result.command, written=options.out is not None)
    return 1 if result.lost else 0


def import_options(args: list[str]) -> ImportOptions:
    """Return the options of an import; a third-party command may be quoted or not."""
    from swift.cli.options import read_options

    try:
        return read_options("config import", _quoted(args), ImportOptions).options
    except UsageError as error:  # a command whose program no vocabulary knows
        from swift.plugins.vocabularies import programs_missing

        error.hint = programs_missing() or error.hint
        raise


def _quoted(args: list[str]) -> list[str]:
    """Return the arguments with an unquoted command joined into one."""
    from swift.plugins.vocabularies import starts_command

    for at, arg in enumerate(args):
        if starts_command(arg) and len(args) > at + 1:
            # No known program has a flag --out.
            end = args.index("--out", at) if "--out" in args[at:] else len(args)
            return [*args[:at], shlex.join(args[at:end]), *args[end:]]
    return args


def _write(path: Path, text: str, *, replace: bool) -> None:
    try:
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} already exists.", hint="Choose another file, or add --exist_ok.") from None
    except OSError as cause:
        raise ConfigError(f"{path} cannot be written: {cause.strerror}.") from None


def _report(lost: list[Remark], command: str, *, written: bool) -> None:
    """Print what is not imported and what to type to standard error: standard output may go to a file."""
    from swift.cli.imported_run import written_remark

    for remark in lost:
        sys.stderr.write(f"Not imported: {written_remark(remark)}\n")
    first = "" if written else "write it to a file, then "
    sys.stderr.write(f"Next: {first}{command}\n")


def _folder(folder: Path) -> int:
    from swift.cli.imported_run import summary

    rows = summary(folder)
    if not rows:
        raise UsageError(f"{folder} has no YAML, JSON or shell files.")
    width = max(len(name) for name, _, _ in rows)
    for name, program, outcome in rows:
        print_line(f"{name:<{width}}  {program:<14}  {outcome}")
    return 0
