"""From a command line, or the keywords of a call, to a validated run: read here, resolved in `swift.parsing.resolve`.

Flags take precedence over a YAML file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from swift.config.draft import Draft, Layer
from swift.config.files import read_yaml
from swift.config.flags import DATA_SUFFIXES, Flag, FlagTable, read_flags
from swift.config.limits import MOST_PROCESSES
from swift.config.options import RunsCode
from swift.config.sections import Config
from swift.config.values import clipped, quoted
from swift.errors import ConfigError, UsageError
from swift.parsing.aliases import MACHINES, training_flags
from swift.parsing.plugin_flags import with_aliases_of_options
from swift.parsing.resolve import Parsed as Parsed
from swift.parsing.resolve import resolve
from swift.plugins.known import FLAGS_OF_BACKENDS, KNOWN
from swift.plugins.load import find
from swift.plugins.vocabularies import check_is_own, programs_missing

TRUST = "model.trust_remote_code"
"""A key that flags and callers may set, and files may not."""


def parse(argv: Sequence[str], command: str, *, complete: bool = True) -> Parsed:
    """Return the run of `swift COMMAND ARGV`; `complete` requires a model and a data set."""
    check_is_own(argv)
    table = with_aliases_of_options(training_flags(), argv)
    with _naming_owner(dict(zip((word.lstrip("-") for word in argv), argv[1:], strict=False))):
        line = read_flags(argv, table)
    layer = Layer(table)
    for name, flag in line.flags.items():
        if name not in table.about_command:
            layer.add_flag(flag)
    file = _file_layer(_config_file(line.flags.get("config"), line.positional), table)
    _check_trust(file, layer)
    nproc = line.flags.get("nproc") or line.flags.get("nproc_per_node")
    _check_code(file, layer, {"objective.name": "objective"})
    parsed = resolve([file, layer], command, _count(nproc.value, nproc.typed) if nproc else None, line.notes)
    _check_code(file, layer, {f"objective.{name}": name for name in RunsCode.fields(type(parsed.objective.options))})
    if complete:
        _check_complete(parsed.config, command)
    machines = {name.upper(): str(line.flags[name].value) for name in MACHINES if name in line.flags}
    if machines and "NNODES" not in machines and not os.environ.get("NNODES"):
        typed = " and ".join(f"--{name.lower()}" for name in machines)
        parsed.notes.append(f"{typed} has no effect without --nnodes.")
    return replace(parsed, machines=machines)


def config_from_mapping(mapping: Mapping[str, Any], command: str = "train", *, source: str = "arguments") -> Parsed:
    """Return the run of a mapping: sections by name, dotted keys, or any alias of the command line."""
    layer = Layer(training_flags())
    layer.add_mapping({key: value for key, value in mapping.items() if key != "nproc"}, {}, source)
    nproc = mapping.get("nproc")
    return resolve([layer], command, None if nproc is None else _count(nproc, f"{source} (nproc)"), [])


def _config_file(flag: Flag | None, positional: list[str]) -> Path | None:
    files = [name for name in positional if name.endswith((".yaml", ".yml"))]
    unexpected = [name for name in positional if name not in files]
    if unexpected:
        name = unexpected[0]
        hint = "Flags begin with --, and a configuration file ends in .yaml."
        if name.endswith(DATA_SUFFIXES):
            hint = f"Did you mean --dataset {clipped(name)}?"
        elif Path(name, "config.json").is_file():
            hint = f"Did you mean --model {clipped(name)}?"
        raise UsageError(f"Unexpected argument {quoted(name)}.", hint=hint)
    if flag is not None:
        files.append(str(flag.value))
    if len(files) > 1:
        raise UsageError(f"More than one configuration file: {', '.join(files)}.", hint="Pass one of them.")
    return Path(files[0]) if files else None


@contextmanager
def _naming_owner(settings: Mapping[str, Any]) -> Iterator[None]:
    """Name the package that an unknown flag may need: of a plugin that the settings name, or of other programs."""
    try:
        yield
    except ConfigError as error:
        for group, flags in _SELECTING.items():
            for flag in flags:
                named = settings.get(flag)
                name = str(named.get("name") if isinstance(named, Mapping) else named)
                if name in KNOWN[group]:
                    find(group, name)
        for beginning, backend in FLAGS_OF_BACKENDS.items():
            if any(flag.startswith(beginning) for flag in settings):
                find("swift.backends", backend)
        missing = programs_missing()
        if missing and "nknown " in error.message:
            error.hint = f"{error.hint}\n{missing}" if error.hint else missing
        raise


_SELECTING = {
    "swift.objectives": ("rlhf_type", "objective", "objective.name"),
    "swift.backends": ("backend", "backend.name", "parallel_method"),
}
"""Group → the flags that select one of its plugins."""


def _file_layer(path: Path | None, table: FlagTable) -> Layer:
    layer = Layer(table)
    if path is not None:
        content, lines = read_yaml(path)
        with _naming_owner(content):
            layer.add_mapping(content, {key: f"{path}:{line}" for key, line in lines.items()}, str(path))
    return layer


def _check_trust(file: Draft, flags: Draft) -> None:
    """Refuse a file that allows a model's Python code to run, unless a flag allows it too.

    A configuration is passed on with its run's folder, so its author may be unknown.
    """
    requested = file.assignments.get(TRUST)
    if requested is not None and requested.value not in (False, None) and TRUST not in flags.assignments:
        raise ConfigError(
            f"{requested.source} sets {TRUST}, which would run Python code of the model. A file cannot allow that.",
            hint=f"If you trust the model's author, add --{TRUST} true",
        )


def _check_code(file: Draft, flags: Draft, keys: Mapping[str, str]) -> None:
    """Refuse a file that names Python files to run, unless a flag names them too. `keys` maps keys to their flags."""
    for key, flag in keys.items():
        requested = file.get(key)
        files = RunsCode.files(requested.value) if requested is not None and key not in flags.assignments else []
        if requested is not None and files:
            named = requested.value if isinstance(requested.value, list | tuple) else [requested.value]
            raise ConfigError(
                f"{requested.source} sets {key}, which would run {', '.join(files)}. A file cannot allow that.",
                hint=f"If you trust the author of the code, add --{flag} {' '.join(map(str, named))}",
            )


def _count(value: Any, source: str) -> int:
    text = quoted(value).strip("'")
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MOST_PROCESSES:
        raise ConfigError(
            f"{source} must be a number of processes from 1 to {MOST_PROCESSES}, not {quoted(value)}.",
            hint="For example: --nproc 2",
        )
    return int(text)


def _check_complete(config: Config, command: str) -> None:
    missing = []
    if config.model.path is None:
        missing.append("--model (a folder, a hub id or a short name such as qwen3-0.6b)")
    if not config.data.train:
        missing.append("--dataset (a file, a folder or a hub id)")
    if missing:
        model = config.model.path or "qwen3-0.6b"
        data = config.data.train[0] if config.data.train else "data.jsonl"
        raise UsageError(
            f"swift {command} needs {' and '.join(missing)}.",
            hint=f"For example: swift {command} --model {model} --dataset {data}",
        )
