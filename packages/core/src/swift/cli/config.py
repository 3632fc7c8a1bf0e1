"""`swift config show | validate | schema`, and the presets of backends."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from swift.cli.commands import TRAINING, training_command
from swift.cli.help import asks_for_help, show_help, show_training_help
from swift.cli.options import read_options
from swift.config.limits import Rows
from swift.config.options import Bare, Section
from swift.errors import UsageError, did_you_mean
from swift.terminal import print_note, result_alone

USAGE = """\
swift config show     [pt|sft|rlhf|train] [config.yaml] [flags]   the resolved configuration and layout
swift config show     ... --sample N                              the same, and N samples as the model sees them
swift config validate [pt|sft|rlhf|train] [config.yaml] [flags]   check only
swift config import   FILE|FOLDER|"COMMAND" [--out run.yaml]       convert a third-party configuration
swift config schema                                               JSON Schema, including installed plugins
swift config BACKEND PRESET                                       a preset of a backend's own configuration file
"""


class ConfigOptions(Section):
    """The first argument selects what is printed. All flags except --sample are those of training.

    show [pt|sft|rlhf|train] [config.yaml] [flags]: the resolved configuration and layout.

    validate [pt|sft|rlhf|train] [config.yaml] [flags]: check the configuration only.

    import FILE|FOLDER|"COMMAND" [--out run.yaml]: convert a third-party configuration.

    schema: JSON Schema of a configuration file, including installed plugins.

    BACKEND PRESET: a preset of a backend's own configuration file.
    """

    examples = (
        "swift config show sft --model qwen3-0.6b --dataset data.jsonl --sample 2",
        "swift config validate rlhf config.yaml --train.epochs 2",
        "swift config import llama3_lora_sft.yaml --out run.yaml",
        "swift config schema",
    )
    sample: Annotated[Rows | None, Bare("1")] = Field(
        None, description="Also print N samples as the model sees them; --sample alone prints one"
    )


class ConfigCommand:
    """Implements `swift.contracts.Command`."""

    group = "Inspect"
    summary = "Show, validate or describe a configuration"
    options_model = ConfigOptions
    parses_args = True

    def run(self, args: list[str]) -> int:
        return configure(args)


def configure(args: list[str]) -> int:
    """Do what the first argument says; return the exit code."""
    if args[:1] == ["import"]:
        from swift.cli.config_import import import_configuration

        return import_configuration(args[1:])
    if asks_for_help(args) and args[1:2] and args[1] in TRAINING:
        show_training_help(args[1], args[2:])
        return 0
    if not args or asks_for_help(args):
        show_help("config", ConfigCommand.summary, ConfigOptions)
        return 0
    action, rest = args[0], args[1:]
    from swift.cli import show

    if action == "schema":
        with result_alone() as say:
            say(show.schema_json().rstrip("\n"))
        return 0
    if action not in ("show", "validate"):
        with result_alone():
            presets = presets_of_backends()
        if action in presets:
            sys.stdout.write(_preset(action, rest, presets[action]))  # a file, unchanged
            return 0
        actions = ("show", "validate", "import", "schema", *presets)
        raise UsageError(f"There is no `swift config {action}`.{did_you_mean(action, actions)}", hint=USAGE)
    trained, rest = training_command(rest, "train")
    typed = read_options("config", rest, ConfigOptions, passes_on=True)
    samples = typed.options.sample or 0
    from swift.cli.planner_choice import chosen
    from swift.cli.preflight import check_anywhere, check_here, check_layout, check_run
    from swift.parsing import parse

    with result_alone() as say:
        argv = chosen([*typed.positional, *typed.passed_on], trained, print_note)
        parsed = parse(argv, trained, complete=samples > 0 or action == "validate")
        if action == "validate":
            with parsed.naming_sources():
                check_anywhere(parsed.config)
                check_layout(parsed)
            say("The configuration is valid.")
            return 0
        with parsed.naming_sources():
            check_here(parsed.config)
            check_run(parsed, show.processes_of(parsed))
        print_samples = show.open_samples(parsed) if samples else None  # may be refused: before anything is printed
        say((show.resolved_yaml(parsed) + show.layout(parsed)).rstrip("\n"))
    if print_samples is not None:
        print_samples(samples)
    return 0


def presets_of_backends() -> dict[str, Mapping[str, str]]:
    """Return installed backend → its presets by name, without backends that have none."""
    from swift.errors import SwiftError
    from swift.plugins.discover import list_plugins
    from swift.plugins.hooks import presets
    from swift.plugins.load import load

    found = {}
    for entry in list_plugins("swift.backends"):
        try:
            offered = presets(load(entry))
        except SwiftError:
            continue  # `swift plugins --check` reports it
        if offered:
            found[entry.name] = offered
    return found


def _preset(backend: str, names: list[str], presets: Mapping[str, str]) -> str:
    if len(names) == 1 and names[0] in presets:
        return presets[names[0]]
    typed = " ".join(names)
    raise UsageError(
        (f"Unknown preset {typed!r} of {backend}." if typed else f"swift config {backend} needs the name of a preset.")
        + did_you_mean(typed, presets),
        hint=f"Presets: {', '.join(presets)}",
    )
