"""`swift data build | join`: tokenize a data set in advance, in independent jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from swift.cli.commands import training_command
from swift.cli.help import asks_for_help, show_help
from swift.cli.options import read_options
from swift.config.limits import FilePath, Name
from swift.config.options import Section
from swift.errors import UsageError, did_you_mean
from swift.terminal import IMPORTS, print_line, print_note, waiting

if TYPE_CHECKING:
    from swift.data.shards import Shard
    from swift.parsing import Parsed

USAGE = """\
swift data build [pt|sft|rlhf] [config.yaml] [flags] --out FOLDER               tokenize a data set
swift data build [pt|sft|rlhf] [config.yaml] [flags] --out FOLDER --shard 3/8   tokenize the third of eight shards
swift data join FOLDER                                                          join the shards
"""


class DataOptions(Section):
    """All flags except --out and --shard are those of training; only the model and data flags have an effect.

    build [pt|sft|rlhf] [config.yaml] [flags]: tokenize a data set, or a shard of it.

    join FOLDER: check that all shards exist and are consistent, and join them.

    To train on the result, type --dataset FOLDER.
    """

    examples = (
        "swift data build sft --model qwen3-0.6b --dataset corpus.jsonl --out tokens",
        "swift data build sft --model qwen3-0.6b --dataset corpus.jsonl --out tokens --shard 3/8",
        "swift data join tokens",
        "swift sft --model qwen3-0.6b --dataset tokens",
    )
    out: FilePath | None = Field(None, description="Folder to write, the same for all shards")
    shard: Name | None = Field(None, description="Tokenize only shard i of n, as i/n with i from 1; default: all rows")


@dataclass(frozen=True)
class Build:
    """A data set, or a shard of it, to be tokenized."""

    parsed: Parsed
    out: Path
    shard: Shard | None


class DataCommand:
    """Implements `swift.contracts.Command`."""

    group = "Train"
    summary = "Tokenize a data set in advance, on many machines"
    options_model = DataOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        if not args or asks_for_help(args[:2]):
            show_help("data", self.summary, DataOptions)
            return 0
        match read_command(args):
            case Build(parsed, out, shard):
                _build(parsed, out, shard)
            case folder:
                _join(folder)
        return 0


def read_command(args: list[str], *, complete: bool = True) -> Build | Path:
    """Return what to build, or the folder of shards to join; unless `complete`, model and data may be missing."""
    action, rest = args[0], args[1:]
    if action == "join":
        if len(rest) != 1 or rest[0].startswith("-"):
            raise UsageError("swift data join takes one argument, the folder with the shards.", hint=USAGE)
        return Path(rest[0]).expanduser()
    if action != "build":
        raise UsageError(f"There is no `swift data {action}`.{did_you_mean(action, ('build', 'join'))}", hint=USAGE)
    trained, rest = training_command(rest, "sft")
    typed = read_options("data", rest, DataOptions, passes_on=True)
    options = typed.options
    if options.out is None:
        raise UsageError("swift data build needs --out FOLDER.", hint=f"For example: {DataOptions.examples[0]}")
    from swift.data.shards import Shard
    from swift.parsing import parse

    shard = Shard.parse(options.shard) if options.shard is not None else None
    parsed = parse([*typed.positional, *typed.passed_on], trained, complete=complete)
    _check(parsed)
    return Build(parsed, options.out.expanduser(), shard)


def _check(parsed: Parsed) -> None:
    """Refuse settings that do not apply to building."""
    data = parsed.config.data
    if data.streaming:
        raise UsageError("swift data build does not support --streaming.", hint="Leave it out.")
    if data.split_ratio or data.validation:
        raise UsageError(
            "swift data build does not build validation sets.",
            hint="Leave it out; build a large validation set as a data set in a separate folder.",
        )


def _join(folder: Path) -> None:
    from swift.data.shards import join_shards

    for line in join_shards(folder).lines():
        print_line(line)
    print_line(f"To train on it, type --dataset {folder}")


def _build(parsed: Parsed, out: Path, shard: Shard | None) -> None:
    """Tokenize the data set or the shard; a whole data set is joined at once."""
    with waiting(IMPORTS):
        from swift.models.quiet import quiet_libraries

        quiet_libraries()
        from swift.data.corpus import open_corpus
        from swift.data.encode import SampleEncoder
        from swift.data.encodings import encoding_of
        from swift.data.pipeline import media_tokens_of
        from swift.data.shards import Shard, build_shard, join_shards
        from swift.models.media_processor import MediaProcessor
        from swift.models.source import open_source

    config = parsed.config
    with waiting(f"Opening {config.model.path}"):
        source = open_source(config.model, say=print_note, seed=config.train.seed)
    objective = parsed.objective.for_model(config.model).for_tokenizer(source.tokenizer)
    encoding = encoding_of(objective.encoding)
    images = None if source.processor is None else MediaProcessor(source.processor, config.data)
    encoder = SampleEncoder(source.tokenizer, config.data, encoding, media_tokens_of(images, config.data))
    corpus = open_corpus(config.data.train, config.data, encoding)
    report = build_shard(corpus, encoder, out, shard or Shard(1, 1), print_note)
    if shard is not None:
        for part in report.sources:
            part.available = part.rows  # the rows of a shard are not the rest of #N
    for line in report.lines():
        print_line(line)
    if shard is None:
        join_shards(out)
        print_line(f"To train on it, type --dataset {out}")
    else:
        print_line(f"Shard {shard} is in {out / shard.folder}. After all shards are built: swift data join {out}")
