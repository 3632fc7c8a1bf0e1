"""From a command line, or the keywords of a call, to a validated configuration.

There are two phases: core validates its own sections, then the selected plugins are loaded and validate their own keys.
Flags take precedence over a YAML file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from swift.config.aliases import MACHINES, training_flags
from swift.config.capabilities import check_capabilities, check_export
from swift.config.compat.environment import set_by_environment
from swift.config.draft import Assignment, Draft, contradiction, merge, nest, source_of
from swift.config.fields import core_fields, core_keys, default_options, model_fields, plugins_with
from swift.config.files import read_yaml
from swift.config.flags import Flag, FlagTable, read_flags
from swift.config.limits import MOST_PROCESSES
from swift.config.objective_defaults import set_defaults
from swift.config.options import RunsCode
from swift.config.plugin_flags import flag_topics, with_aliases_of_options
from swift.config.problems import config_error, subject
from swift.config.requests import settle, settle_layer
from swift.config.schedules import check_schedule
from swift.config.sections import COPIES, DEFAULT_OBSERVERS, Config, OpenSection, Section
from swift.config.tasks import TASKS, check_task, for_objective, trained_by
from swift.config.values import clipped, coerce, quoted
from swift.errors import ConfigError, SwiftError, UsageError
from swift.plugins.blame import failing
from swift.plugins.discover import list_plugins, objective_names, only_installed
from swift.plugins.hooks import core_settings
from swift.plugins.known import KNOWN, PACKAGES
from swift.plugins.load import (
    LoadedPlugin,
    find,
    load_backend,
    load_exporter,
    load_objective,
    load_optimizer,
    load_tuner,
)
from swift.plugins.objective import make_objective
from swift.plugins.python_files import absolute, is_in_file
from swift.plugins.return_values import wrong
from swift.remote.urls import check_protocol

TRUST = "model.trust_remote_code"
"""A key that flags and callers may set, and files may not."""


@dataclass(frozen=True)
class Parsed:
    """A validated run."""

    config: Config
    """With the own options of the selected plugins filled in."""
    backend_options: BaseModel
    objective_options: BaseModel
    notes: list[str] = field(default_factory=list)
    """Notes for the user before the run."""
    nproc: int | None = None
    """Processes to start on this machine; None when no flag sets it."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """Environment variables about the other machines of the run that flags set, such as NNODES."""


def parse(argv: Sequence[str], command: str, *, complete: bool = True) -> Parsed:
    """Return the run of `swift COMMAND ARGV`; `complete` requires a model and a data set."""
    table = training_flags()
    try:
        line = read_flags(argv, table)
    except ConfigError:
        _check_owner(dict(zip((word.lstrip("-") for word in argv), argv[1:], strict=False)))
        table = with_aliases_of_options(table, argv)
        line = read_flags(argv, table)
    layer = Draft(table)
    for name, flag in line.flags.items():
        if name not in table.about_command:
            layer.add_flag(flag)
    file = _file_layer(_config_file(line.flags.get("config"), line.positional), table)
    _check_trust(file, layer)
    nproc = line.flags.get("nproc") or line.flags.get("nproc_per_node")
    _check_objective(file, layer)
    parsed = _resolve([file, layer], command, _count(nproc.value, nproc.typed) if nproc else None, line.notes)
    _check_code(file, layer, type(parsed.objective_options))
    if complete:
        _check_complete(parsed.config, command)
    machines = {name.upper(): str(line.flags[name].value) for name in MACHINES if name in line.flags}
    if machines and "NNODES" not in machines and not os.environ.get("NNODES"):
        typed = " and ".join(f"--{name.lower()}" for name in machines)
        parsed.notes.append(f"{typed} has no effect without --nnodes.")
    return replace(parsed, machines=machines)


def config_from_mapping(mapping: Mapping[str, Any], command: str = "train", *, source: str = "arguments") -> Parsed:
    """Return the run of a mapping: sections by name, dotted keys, or any alias of the command line."""
    layer = Draft(training_flags())
    layer.add_mapping({key: value for key, value in mapping.items() if key != "nproc"}, {}, source)
    nproc = mapping.get("nproc")
    return _resolve([layer], command, None if nproc is None else _count(nproc, f"{source} (nproc)"), [])


def _config_file(flag: Flag | None, positional: list[str]) -> Path | None:
    files = [name for name in positional if name.endswith((".yaml", ".yml"))]
    unexpected = [name for name in positional if name not in files]
    if unexpected:
        name = unexpected[0]
        hint = "Flags begin with --, and a configuration file ends in .yaml."
        if name.endswith((".jsonl", ".json", ".csv", ".parquet", ".txt")):
            hint = f"Did you mean --dataset {clipped(name)}?"
        raise UsageError(f"Unexpected argument {quoted(name)}.", hint=hint)
    if flag is not None:
        files.append(str(flag.value))
    if len(files) > 1:
        raise UsageError(f"More than one configuration file: {', '.join(files)}.", hint="Pass one of them.")
    return Path(files[0]) if files else None


def _check_owner(settings: Mapping[str, Any]) -> None:
    """Raise `PluginError` where the settings name a known objective that is not installed: it may own a flag."""
    for flag in ("rlhf_type", "objective", "objective.name"):
        if settings.get(flag) in KNOWN["swift.objectives"]:
            find("swift.objectives", settings[flag])


def _file_layer(path: Path | None, table: FlagTable) -> Draft:
    layer = Draft(table)
    if path is not None:
        content, lines = read_yaml(path)
        try:
            layer.add_mapping(content, {key: f"{path}:{line}" for key, line in lines.items()}, str(path))
        except ConfigError:
            _check_owner(content)
            raise
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


def _check_objective(file: Draft, flags: Draft) -> None:
    """Refuse a file that names a Python file with the objective, unless a flag names it too."""
    requested = file.assignments.get("objective.name")
    if requested is not None and "objective.name" not in flags.assignments and RunsCode.files(requested.value):
        raise _code_in_file(requested, "objective.name", "objective")


def _code_in_file(requested: Assignment, key: str, flag: str) -> ConfigError:
    named = requested.value if isinstance(requested.value, list | tuple) else [requested.value]
    return ConfigError(
        f"{requested.source} sets {key}, which would run {', '.join(RunsCode.files(requested.value))}. A file "
        "cannot allow that.",
        hint=f"If you trust the author of the code, add --{flag} {' '.join(map(str, named))}",
    )


def _check_code(file: Draft, flags: Draft, options: type[BaseModel]) -> None:
    """Refuse a file that names Python files for the objective to run, unless a flag names them too."""
    for name, field_info in options.model_fields.items():
        key = f"objective.{name}"
        requested = file.assignments.get(key)
        marked = any(isinstance(each, RunsCode) for each in field_info.metadata)
        if requested is None or key in flags.assignments or not marked or not RunsCode.files(requested.value):
            continue
        raise _code_in_file(requested, key, name)


def _count(value: Any, source: str) -> int:
    text = quoted(value).strip("'")
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MOST_PROCESSES:
        raise ConfigError(
            f"{source} must be a number of processes from 1 to {MOST_PROCESSES}, not {quoted(value)}.",
            hint="For example: --nproc 2",
        )
    return int(text)


def _resolve(layers: list[Draft], command: str, nproc: int | None, notes: list[str]) -> Parsed:
    for layer in layers:
        layer.finish()
        settle_layer(layer)
    merged = merge(layers)
    notes = [*notes, *(note for layer in layers for note in layer.notes), *settle(merged)]
    _name_objective(merged, command, notes)
    named = merged.get("objective.name")
    if named is not None and is_in_file("swift.objectives", named.value):
        merged["objective.name"] = replace(named, value=absolute(named.value))
    notes += set_by_environment(merged, os.environ)
    _name_observers(merged)

    source = partial(source_of, merged)
    config = _validated(merged, source)
    backend = load_backend(config.backend.name)
    objective = load_objective(config.objective.name)
    _check_names(config)
    backend_options = _own_options(backend, "backend", config.backend, source)
    if _imply(merged, core_settings(backend, backend_options)):
        config = _validated(merged, source)
    tuner, optimizer = load_tuner(config.tuner.kind), load_optimizer(config.optim.name)
    for plugin, section in ((tuner, "tuner"), (optimizer, "optim")):
        notes += _leave_out(merged, plugin, section)
    notes += set_defaults(merged, objective, {"tuner": tuner, "optim": optimizer})
    config = _validated(merged, source)
    objective_options = _own_options(objective, "objective", config.objective, source)
    chosen = {
        "backend": backend_options,
        "objective": objective_options,
        "tuner": _own_options(tuner, "tuner", config.tuner, source),
        "optim": _own_options(optimizer, "optim", config.optim, source),
    }
    if config.export.to is not None:
        chosen["export"] = _own_options(load_exporter(config.export.to), "export", config.export, source)
    elif config.export.model_extra:
        key = f"export.{next(iter(config.export.model_extra))}"
        raise ConfigError(f"{subject(source(key), key)} has no effect without export.to.", hint="Add --export.to NAME")
    config = config.model_copy(
        update={section: _with_options(getattr(config, section), options) for section, options in chosen.items()}
    )
    if config.optim.lr is None:
        config = config.model_copy(update={"optim": config.optim.model_copy(update={"lr": tuner.object.learning_rate})})
    check_schedule(config.optim, config.learning_rate)
    assert backend.capabilities is not None
    made = make_objective(objective, objective_options)
    config = config.model_copy(update={"model": for_objective(config.model, made)})
    check_task(config.model, made)
    made = make_objective(objective, objective_options, model=config.model)
    check_capabilities(backend.capabilities, config, made)
    check_export(config)
    return Parsed(config, backend_options, objective_options, notes, nproc)


def _name_observers(merged: dict[str, Assignment]) -> None:
    """Name those of the default observers that are installed: the report and TensorBoard are not core's."""
    installed = only_installed("swift.observers", DEFAULT_OBSERVERS)
    if installed != DEFAULT_OBSERVERS:
        merged.setdefault("logging.report_to", Assignment(installed, "the installed observers"))


def _with_options(section: OpenSection, options: BaseModel) -> OpenSection:
    """Return a section with its plugin's validated options."""
    core = {name: getattr(section, name) for name in type(section).model_fields}
    return type(section).model_construct(_fields_set=section.model_fields_set, **core, **dict(options))


def _leave_out(merged: dict[str, Assignment], plugin: LoadedPlugin, section: str) -> list[str]:
    """Remove keys of the section's default plugin that the selected plugin lacks, and return a note for each.

    Third-party commands set them in any case: `--lora_rank` for full training, `--adam_beta1` for Adafactor.
    """
    assert plugin.config_model is not None
    inapplicable = default_options(section) - plugin.config_model.model_fields.keys()
    taken = [merged.pop(key) for key in [f"{section}.{name}" for name in sorted(inapplicable)] if key in merged]
    name = f"{plugin.entry.kind} {plugin.entry.name!r}"
    return [f"{each.source} has no effect: the {name} has no such option." for each in taken]


def _validated(merged: dict[str, Assignment], source: Callable[[str], str]) -> Config:
    try:
        return Config.model_validate(nest(merged))
    except ValidationError as problem:
        raise config_error(problem, source, core_fields()) from None


def _imply(merged: dict[str, Assignment], settings: Mapping[str, tuple[Any, str]]) -> bool:
    """Set the core keys that a backend's own options imply; return whether any changed.

    Raise `ConfigError` where the user set another value.
    """
    changed = False
    for key, (value, source) in settings.items():
        typed = merged.get(key)
        if typed is None:
            merged[key] = Assignment(value, source)
            changed = True
        elif not _same(typed.value, value):
            raise contradiction(key, typed, Assignment(value, source))
    return changed


def _same(one: Any, other: Any) -> bool:
    try:
        return float(one) == float(other)
    except (TypeError, ValueError, OverflowError):
        return bool(one == other)


def _check_names(config: Config) -> None:
    """Check that plugins which are needed later exist: a run should not train for hours and then fail to export."""
    if COPIES in config.logging.report_to:
        raise ConfigError(
            f"logging.report_to cannot name {COPIES!r}: it copies checkpoints, and needs a URL.",
            hint="Type: --checkpoint.copy_to s3://bucket/runs",
        )
    for name in config.observers:
        find("swift.observers", name)
    if config.checkpoint.copy_to is not None:
        check_protocol(
            config.checkpoint.copy_to, error=ConfigError, hint="For example: --checkpoint.copy_to s3://bucket/runs"
        )
    if config.export.to is not None:
        find("swift.exporters", config.export.to)


def _own_options(plugin: LoadedPlugin, section: str, values: BaseModel, source: Callable[[str], str]) -> BaseModel:
    """Validate the keys of a section that core does not know with the plugin's model: the second phase."""
    model = plugin.config_model or Section  # an exporter need not have options
    own = {field.key: field for field in model_fields(model, section)}
    fields = own | {key: field for key, field in core_fields().items() if key.startswith(f"{section}.")}
    _check_third_party(plugin, section, values, source)
    typed = {}
    for name, value in (values.model_extra or {}).items():
        known = fields.get(f"{section}.{name}")
        typed[name] = coerce(known, value, source(f"{section}.{name}")) if known else value
    function = f"{model.__name__}, which validates the section {section!r}"
    with failing(plugin.entry, function):
        try:
            options = model.model_validate(typed)
        except ValidationError as problem:
            owner = f"{plugin.entry.kind} {plugin.entry.name!r}"
            raise config_error(problem, source, fields, section=section, owner=owner) from None
        if not isinstance(options, model):
            raise wrong(plugin.entry, function, f"a {model.__name__}", options)
        return options


def _check_third_party(plugin: LoadedPlugin, section: str, values: BaseModel, source: Callable[[str], str]) -> None:
    """Refuse keys of another plugin, such as `tuner.freeze` for adapters, and name that plugin."""
    known = plugin.config_model.model_fields.keys() if plugin.config_model else set()
    for name in (values.model_extra or {}).keys() - known:
        key = f"{section}.{name}"
        if section == "objective" and not _takes_any(plugin):
            _check_misplaced(name, subject(source(key), key), plugin)
        available_in = plugins_with(section, name) if key in core_fields() else _backends_with(section, name)
        if available_in:
            chosen = f"{section}.name" if "name" in core_keys(section) else f"{section}.kind"
            flag, own = subject(source(key), key), plugin.entry
            others = (
                f" (also of {', '.join(map(repr, available_in[1:]))})"
                if section == "backend" and available_in[1:]
                else ""
            )
            raise ConfigError(
                f"{flag} is an option of the {own.kind} {available_in[0]!r}{others}, but {chosen} is {own.name}.",
                hint=f"Type --{chosen} {available_in[0]}, or leave it out.",
            )


def _backends_with(section: str, option: str) -> list[str]:
    """Return the installed backends that have an option of this name."""
    found = []
    for entry in list_plugins("swift.backends") if section == "backend" else ():
        with suppress(SwiftError):  # one that cannot be loaded has no options
            model = load_backend(entry.name).config_model if entry.allowed else None
            if model is not None and option in model.model_fields:
                found.append(entry.name)
    return found


def _check_misplaced(name: str, flag: str, plugin: LoadedPlugin) -> None:
    """Refuse an option of the objectives that a vocabulary belongs to, with its hint."""
    for topic in flag_topics():
        if name in topic.options and topic.misplaced is not None:
            raise topic.misplaced(flag, plugin.entry.name, plugin.entry.distribution in PACKAGES)


def _takes_any(plugin: LoadedPlugin) -> bool:
    """Return whether the options of a plugin may have any name."""
    return plugin.config_model is not None and plugin.config_model.model_config.get("extra") == "allow"


def _name_objective(merged: dict[str, Assignment], command: str, notes: list[str]) -> None:
    """Set the objective that the command or the model's task implies; refuse one that the command does not train."""
    requested = merged.get("objective.name")
    task = merged.get("model.task")
    if requested is None and task is not None and (default := trained_by(str(task.value))) is not None:
        requested = merged["objective.name"] = Assignment(default, task.source)
        if task.value not in TASKS:
            del merged["model.task"]  # it is the objective's name
    if requested is None:
        if (default := trained_by(command)) is not None:
            merged["objective.name"] = Assignment(default, f"swift {command}")
            if default != command:
                notes.append(f"The objective is {default}, the default; --rlhf_type selects another.")
        elif command != "train":
            find("swift.commands", command)
    elif command != "train" and requested.value in objective_names():
        trains = load_objective(requested.value).object.command
        if trains not in (command, "train"):
            raise ConfigError(
                f"swift {command} does not train the objective {quoted(requested.value)} ({requested.source}).",
                hint=f"Type: swift {_command_of(requested.value, trains)}",
            )


def _command_of(objective: str, command: str) -> str:
    """Return the arguments after `swift` that train an objective with its command."""
    return command if trained_by(command) == objective else f"{command} --objective {objective}"


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
