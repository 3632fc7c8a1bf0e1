"""`swift config show | validate | schema`, and files to begin from that backends bring."""

from __future__ import annotations

from collections.abc import Mapping

from swift.cli.verbs import TRAINING
from swift.cli.words import asks_for_help
from swift.errors import UsageError, did_you_mean

USAGE = """\
swift config show     [pt|sft|rlhf|train] [config.yaml] [flags]   the resolved configuration and layout
swift config show     ... --sample N                              and N samples as the model will see them
swift config validate [pt|sft|rlhf|train] [config.yaml] [flags]   only whether it is right
swift config schema                                               JSON Schema, installed plugins included
swift config BACKEND PRESET                                       a file of that backend's own to begin from
"""


def run(_verb: str, args: list[str]) -> int:
    """The verb."""
    import sys

    if not args or asks_for_help(args):
        sys.stdout.write(USAGE)
        return 0
    action, rest = args[0], args[1:]
    from swift.cli import show

    if action == "schema":
        sys.stdout.write(show.schema_json())
        return 0
    if action not in ("show", "validate"):
        presets = presets_of_backends()
        if action in presets:
            sys.stdout.write(_preset(action, rest, presets[action]))
            return 0
        actions = ("show", "validate", "schema", *presets)
        raise UsageError(f"There is no `swift config {action}`.{did_you_mean(action, actions)}", hint=USAGE)
    verb = rest.pop(0) if rest and rest[0] in TRAINING else "train"
    samples = _take_samples(rest)
    from swift.config.parse import parse

    parsed = parse(rest, verb, complete=samples > 0 or action == "validate")
    if action == "validate":
        sys.stdout.write("The configuration is right.\n")
        return 0
    sys.stdout.write(show.resolved_yaml(parsed))
    sys.stdout.write(show.layout(parsed))
    if samples:
        show.print_samples(parsed, samples)
    return 0


def presets_of_backends() -> dict[str, Mapping[str, str]]:
    """Installed backend → its presets, by name, of those that have any."""
    from swift.errors import SwiftError
    from swift.plugins.discover import list_plugins
    from swift.plugins.load import load
    from swift.plugins.outside import presets

    found = {}
    for entry in list_plugins("swift.backends"):
        try:
            offered = presets(load(entry))
        except SwiftError:
            continue  # `swift plugins` says what is wrong with it
        if offered:
            found[entry.name] = offered
    return found


def _preset(backend: str, names: list[str], presets: Mapping[str, str]) -> str:
    if len(names) == 1 and names[0] in presets:
        return presets[names[0]]
    said = " ".join(names)
    raise UsageError(
        f"swift config {backend} takes the name of a preset{f', not {said!r}' if said else ''}."
        f"{did_you_mean(said, presets)}",
        hint=f"Presets: {', '.join(presets)}",
    )


def _take_samples(args: list[str]) -> int:
    """Remove `--sample N` from `args`; a bare `--sample` is one."""
    for place, word in enumerate(args):
        said, separator, value = word.partition("=")
        if said != "--sample":
            continue
        del args[place]
        if not separator and place < len(args) and args[place].isdecimal():
            value = args.pop(place)
        if value and not (value.isdecimal() and int(value) > 0):
            raise UsageError(f"--sample takes a number of samples, not {value!r}.", hint="Type: --sample 1")
        return int(value or 1)
    return 0
