"""`swift data build | join`: tokenises a data set beforehand, by as many independent jobs as there are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from swift.cli.builtin import BUILTIN_COMMANDS, KIN, TRAINING
from swift.cli.help import asks_for_help, show_help
from swift.cli.options import read_options
from swift.config.limits import FilePath, Name
from swift.config.options import Section
from swift.errors import UsageError, did_you_mean
from swift.terminal import IMPORTS, print_line, print_note, waiting

if TYPE_CHECKING:
    from swift.config.parse import Parsed
    from swift.data.shards import Shard

USAGE = """\
swift data build [pt|sft|rlhf] [config.yaml] [flags] --out FOLDER               tokenise a data set
swift data build [pt|sft|rlhf] [config.yaml] [flags] --out FOLDER --shard 3/8   the third of eight parts of it
swift data join FOLDER                                                          make the parts one data set
"""


class DataOptions(Section):
    """All flags but --out and --shard are those of the command that trains: the ones about model and data decide.

    build [pt|sft|rlhf] [config.yaml] [flags]: tokenise a data set, or a part of it.

    join FOLDER: check that all parts are there and fit together, and make them one data set.

    The folder is then what a run learns from: --dataset FOLDER.
    """

    examples = (
        "swift data build sft --model qwen3-0.6b --dataset corpus.jsonl --out tokens",
        "swift data build sft --model qwen3-0.6b --dataset corpus.jsonl --out tokens --shard 3/8",
        "swift data join tokens",
        "swift sft --model qwen3-0.6b --dataset tokens",
    )
    out: FilePath | None = Field(None, description="Folder that is written; one for all parts")
    shard: Name | None = Field(
        None,
        description="Tokenise the i-th of n parts of the rows, i/n with i from 1, to be joined later; default: all",
    )


@dataclass(frozen=True)
class Build:
    """Command that tokenises a data set, or a shard of it."""

    parsed: Parsed
    out: Path
    shard: Shard | None


@dataclass(frozen=True)
class Join:
    """Command that makes the shards of a folder one data set."""

    folder: Path


def run(command: str, args: list[str]) -> int:
    """Run the command; returns the exit code."""
    if not args or asks_for_help(args[:2]):
        show_help(command, BUILTIN_COMMANDS[command].summary, DataOptions)
        return 0
    match read_command(args):
        case Build() as build:
            _build(build.parsed, build.out, build.shard)
        case Join(folder):
            _join(folder)
    return 0


def read_command(args: list[str], *, complete: bool = True) -> Build | Join:
    """Return what the words after `swift data` ask for; unless `complete`, the model and the data may be missing."""
    action, rest = args[0], args[1:]
    if action == "join":
        if len(rest) != 1 or rest[0].startswith("-"):
            raise UsageError("swift data join takes the folder that the shards are in, and nothing else.", hint=USAGE)
        return Join(Path(rest[0]).expanduser())
    if action != "build":
        raise UsageError(f"There is no `swift data {action}`.{did_you_mean(action, ('build', 'join'))}", hint=USAGE)
    if rest and rest[0] in KIN:
        rest = [*KIN[rest[0]], *rest[1:]]
    trained = rest.pop(0) if rest and rest[0] in TRAINING else "sft"
    typed = read_options("data", rest, DataOptions, passes_on=True)
    options = typed.options
    if options.out is None:
        raise UsageError("swift data build needs --out, the folder that it writes.", hint=DataOptions.examples[0])
    from swift.config.parse import parse
    from swift.data.shards import Shard

    shard = Shard.parse(options.shard) if options.shard is not None else None
    parsed = parse([*typed.words, *typed.passed_on], trained, complete=complete)
    _check(parsed)
    return Build(parsed, options.out.expanduser(), shard)


def _check(parsed: Parsed) -> None:
    """Refuse settings that have no meaning here."""
    data = parsed.config.data
    if data.streaming:
        raise UsageError("--streaming tokenises while training, which is not beforehand.", hint="Leave it out.")
    if data.split_ratio or data.validation:
        raise UsageError(
            "swift data build tokenises one data set, and a validation set is another.",
            hint="Leave it out here; build it into a folder of its own if it is large.",
        )


def _join(folder: Path) -> None:
    from swift.data.shards import join_shards

    for line in join_shards(folder).lines():
        print_line(line)
    print_line(f"Train on it: --dataset {folder}")


def _build(parsed: Parsed, out: Path, shard: Shard | None) -> None:
    """Tokenise what the configuration names; all of it is joined at once."""
    with waiting(IMPORTS):
        from swift.models.quiet import quiet_libraries

        quiet_libraries()
        from swift.data.corpus import open_corpus
        from swift.data.encode import SampleEncoder
        from swift.data.encodings import encoding_of
        from swift.data.pipeline import media_tokens
        from swift.data.shards import Shard, build_shard, join_shards
        from swift.models.media_processor import MediaProcessor
        from swift.models.source import open_source
        from swift.plugins.load import load_objective
        from swift.plugins.objective import make_objective

    config = parsed.config
    with waiting(f"Opening {config.model.path}"):
        source = open_source(config.model, say=print_note, seed=config.train.seed)
    objective = make_objective(load_objective(config.objective.name), parsed.objective_options, model=config.model)
    encoding = encoding_of(objective.encoding)
    images = None if source.processor is None else MediaProcessor(source.processor, config.data)
    encoder = SampleEncoder(source.tokenizer, config.data, encoding, media_tokens(images, config.data))
    corpus = open_corpus(config.data.train, config.data, encoding)
    report = build_shard(corpus, encoder, out, shard or Shard(1, 1), print_note)
    if shard is not None:
        for part in report.sources:
            part.available = part.rows  # what the shard has is not what #N left
    for line in report.lines():
        print_line(line)
    if shard is None:
        join_shards(out)
        print_line(f"Train on it: --dataset {out}")
    else:
        print_line(f"Shard {shard} is in {out / shard.folder}. When all are there: swift data join {out}")
