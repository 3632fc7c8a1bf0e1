"""From the drafts of all sources to a validated configuration, in five stages.

1. `settle`: the drafts become one, whose requests are keys, and which names all plugins.
2. `select`: the plugins are loaded.
3. `complete`: each plugin validates its own options, and sets defaults elsewhere.
4. `validate`: the configuration is validated, once.
5. `check`: the parts are compared with each other and with what the backend supports.

Every value has its source, so that notes and errors name the flag, the line of a file, the variable or the plugin.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from swift.config.draft import Assignment, Draft, Layer, merge
from swift.config.fields import core_fields, core_keys, default_options, model_fields, plugins_with
from swift.config.options import Section
from swift.config.problems import config_error, subject
from swift.config.schedules import check_schedule
from swift.config.sections import COPIES, DEFAULT_OBSERVERS, Config, ModelSection, OpenSection
from swift.config.settings import unknown_value
from swift.config.sources import naming_sources
from swift.config.values import coerce, quoted
from swift.contracts import Objective
from swift.errors import ConfigError, SwiftError, about
from swift.model_names import stand_in
from swift.parsing.capabilities import check_capabilities, check_export
from swift.parsing.plugin_flags import flag_topics
from swift.parsing.requests import settle_layer, settle_requests
from swift.parsing.tasks import TASKS, check_task, for_objective, trained_by
from swift.plugins.blame import failing
from swift.plugins.discover import list_plugins, objective_names, only_installed, plugin_names
from swift.plugins.hooks import core_settings
from swift.plugins.known import PACKAGES
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


@dataclass(frozen=True)
class Parsed:
    """A validated run."""

    config: Config
    """With the own options of the selected plugins filled in."""
    backend_options: BaseModel
    objective: Objective
    """Made with its options, before the tokenizer is known."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user before the run."""
    nproc: int | None = None
    """Processes to start on this machine; None when no flag sets it."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """Environment variables about the other machines of the run that flags set, such as NNODES."""
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    """Key → its value, and what set it: a flag, the line of a file, a variable, a plugin. Defaults are left out."""

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of this process, with those that flags set."""
        return {**os.environ, **self.machines}

    def naming_sources(self) -> AbstractContextManager[None]:
        """Add to errors where each key that they name was set."""
        return naming_sources(self.assignments)


@dataclass(frozen=True)
class Selected:
    """The plugins that a configuration selects."""

    backend: LoadedPlugin
    objective: LoadedPlugin
    tuner: LoadedPlugin
    optimizer: LoadedPlugin
    exporter: LoadedPlugin | None


@dataclass(frozen=True)
class Completed:
    """A draft that all plugins have completed: their options by section, and the objective."""

    draft: Draft
    options: Mapping[str, BaseModel]
    objective: Objective


def resolve(layers: Iterable[Layer], command: str, nproc: int | None, notes: Iterable[str]) -> Parsed:
    """Return the run of a command."""
    draft = settle(layers, command)
    with naming_sources(draft.assignments):
        selected = select(draft)
        completed = complete(draft, selected)
        config = check(validate(completed), completed.objective, selected)
    notes = [*notes, *draft.notes]
    return Parsed(
        config, completed.options["backend"], completed.objective, notes, nproc, assignments=draft.assignments
    )


def settle(layers: Iterable[Layer], command: str) -> Draft:
    """Return the draft of all layers: requests have become keys, and all plugins are named."""
    finished = list(layers)
    for layer in finished:
        layer.finish()
        settle_layer(layer)
    draft = merge(finished)
    settle_requests(draft)
    _name_model(draft)
    _name_objective(draft, command)
    named = draft.get("objective.name")
    if named is not None and is_in_file("swift.objectives", named.value):
        draft.replace("objective.name", absolute(named.value), named.source)
    for topic in flag_topics():
        if topic.read_environment is not None:
            topic.read_environment(draft, os.environ)
    installed = only_installed("swift.observers", DEFAULT_OBSERVERS)
    if installed != DEFAULT_OBSERVERS:  # the report and TensorBoard are not core's
        draft.default("logging.report_to", installed, "the installed observers")
    return draft


def select(draft: Draft) -> Selected:
    """Load the plugins that the draft names."""
    return Selected(
        _load(draft, "backend.name", load_backend),
        _load(draft, "objective.name", load_objective),
        _load(draft, "tuner.kind", load_tuner),
        _load(draft, "optim.name", load_optimizer),
        None if _name(draft, "export.to") is None else _load(draft, "export.to", load_exporter),
    )


def complete(draft: Draft, selected: Selected) -> Completed:
    """Validate the options of all plugins, and let backend and objective set keys that the user leaves open."""
    options = {"backend": _own_options(draft, selected.backend, "backend")}
    for key, (value, source) in core_settings(selected.backend, options["backend"]).items():
        draft.set(key, value, source)
    for plugin, section in ((selected.tuner, "tuner"), (selected.optimizer, "optim")):
        _leave_out(draft, plugin, section)
    _set_defaults(draft, selected.objective, {"tuner": selected.tuner, "optim": selected.optimizer})
    options["objective"] = _own_options(draft, selected.objective, "objective")
    options["tuner"] = _own_options(draft, selected.tuner, "tuner")
    options["optim"] = _own_options(draft, selected.optimizer, "optim")
    if selected.exporter is not None:
        options["export"] = _own_options(draft, selected.exporter, "export")
    elif own := _own_keys(draft, "export"):
        key = f"export.{next(iter(own))}"
        raise ConfigError(
            f"{subject(draft.source(key), key)} has no effect without export.to.", hint="Add --export.to NAME"
        )
    if draft.value("optim.lr") is None:
        draft.replace("optim.lr", selected.tuner.object.learning_rate, f"the {selected.tuner.entry.title}")
    return Completed(draft, options, make_objective(selected.objective, options["objective"]))


def validate(completed: Completed) -> Config:
    """Return the configuration, with the validated options of all plugins."""
    draft, open_sections = completed.draft, completed.options
    content = draft.nested()
    for section in open_sections.keys() & content.keys():
        content[section] = {key: value for key, value in content[section].items() if key in core_keys(section)}
    try:
        config = Config.model_validate(content)
    except ValidationError as problem:
        raise config_error(problem, draft.source, core_fields()) from None
    return config.model_copy(
        update={section: _with_options(getattr(config, section), own) for section, own in open_sections.items()}
    )


def check(config: Config, objective: Objective, selected: Selected) -> Config:
    """Compare the parts with each other and with what the backend supports; return the model section settled."""
    _check_names(config)
    check_schedule(config.optim, config.learning_rate)
    config = config.model_copy(update={"model": for_objective(config.model, objective)})
    check_task(config.model, objective)
    _check_context(config.model)
    check_capabilities(selected.backend.capabilities, config, objective.for_model(config.model))
    check_export(config)
    return config


def _load(draft: Draft, key: str, loader: Callable[[str], LoadedPlugin]) -> LoadedPlugin:
    with about(key):
        return loader(_name(draft, key))


def _name(draft: Draft, key: str) -> Any:
    """Return the plugin that a key names, or its default; raise `ConfigError` for what cannot be a name."""
    named = draft.get(key)
    if named is None:
        return core_fields()[key].default
    section, _, name = key.partition(".")
    model: Any = Config.model_fields[section].annotation
    try:
        return getattr(model.model_validate({name: named.value}), name)
    except ValidationError as problem:
        raise config_error(problem, draft.source, core_fields(), section=section) from None


def _own_keys(draft: Draft, section: str) -> dict[str, Any]:
    """Return the keys of a section that core does not know."""
    content = draft.nested().get(section, {})
    return {name: value for name, value in content.items() if name not in core_keys(section)}


def _with_options(section: OpenSection, options: BaseModel) -> OpenSection:
    """Return a section with its plugin's validated options."""
    core = {name: getattr(section, name) for name in type(section).model_fields}
    fields_set = section.model_fields_set | options.model_fields_set
    return type(section).model_construct(_fields_set=fields_set, **core, **dict(options))


def _leave_out(draft: Draft, plugin: LoadedPlugin, section: str) -> None:
    """Remove keys of the section's default plugin that the selected plugin lacks, with a note for each.

    Third-party commands set them in any case: `--lora_rank` for full training, `--adam_beta1` for Adafactor.
    """
    assert plugin.config_model is not None
    for name in sorted(default_options(section) - plugin.config_model.model_fields.keys()):
        dropped = draft.drop(f"{section}.{name}")
        if dropped is not None:
            draft.note(f"{dropped.source} has no effect: the {plugin.entry.title} has no such option.")


def _set_defaults(draft: Draft, objective: LoadedPlugin, selected: Mapping[str, LoadedPlugin]) -> None:
    """Set an objective's defaults for keys that are not set, with a note for each.

    `selected` maps open sections to their plugins: options that the selected plugin lacks are skipped.
    """
    defaults: Mapping[str, tuple[Any, str]] = objective.object.defaults
    for key, (value, reason) in defaults.items():
        if _is_set(draft, key) or not _exists(key, selected):
            continue
        draft.replace(key, value, f"the {objective.entry.kind} {objective.entry.name!r}")
        draft.note(f"The objective {objective.entry.name} sets {key} to {value}: {reason}.")


def _is_set(draft: Draft, key: str) -> bool:
    """Return whether a key, a mapping around it, or a key inside it is set."""
    return any(
        key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in draft.assignments
    )


def _exists(key: str, selected: Mapping[str, LoadedPlugin]) -> bool:
    section, _, name = key.partition(".")
    plugin = selected.get(section)
    if plugin is None or name in core_keys(section):
        return True
    return plugin.config_model is not None and name in plugin.config_model.model_fields


def _own_options(draft: Draft, plugin: LoadedPlugin, section: str) -> BaseModel:
    """Validate the keys of a section that core does not know with the plugin's model."""
    model = plugin.config_model or Section  # an exporter need not have options
    own = {field.key: field for field in model_fields(model, section)}
    fields = own | {key: field for key, field in core_fields().items() if key.startswith(f"{section}.")}
    values = _own_keys(draft, section)
    _check_third_party(draft, plugin, section, values)
    typed = {}
    for name, value in values.items():
        known = fields.get(f"{section}.{name}")
        typed[name] = coerce(known, value, draft.source(f"{section}.{name}")) if known else value
    function = f"{model.__name__}, which validates the section {section!r}"
    with failing(plugin.entry, function):
        try:
            options = model.model_validate(typed)
        except ValidationError as problem:
            raise config_error(problem, draft.source, fields, section=section, owner=plugin.entry.title) from None
        if not isinstance(options, model):
            raise wrong(plugin.entry, function, f"a {model.__name__}", options)
        return options


def _check_third_party(draft: Draft, plugin: LoadedPlugin, section: str, values: Iterable[str]) -> None:
    """Refuse keys of another plugin, such as `tuner.freeze` for adapters, and name that plugin."""
    known = plugin.config_model.model_fields.keys() if plugin.config_model else set()
    for name in sorted(set(values) - known):
        key = f"{section}.{name}"
        if section == "objective" and not _takes_any(plugin):
            _check_misplaced(name, subject(draft.source(key), key), plugin)
        available_in = plugins_with(section, name) if key in core_fields() else _backends_with(section, name)
        if available_in:
            chosen = f"{section}.name" if "name" in core_keys(section) else f"{section}.kind"
            flag, own = subject(draft.source(key), key), plugin.entry
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


def _check_context(section: ModelSection) -> None:
    """Raise `ConfigError` for a scaling without a length, and for a length without a scaling."""
    if section.rope_scaling is not None and section.max_model_len is None:
        raise ConfigError("model.rope_scaling needs model.max_model_len.", hint="For example: --max_model_len 131072")
    if section.max_model_len is not None and section.rope_scaling is None:
        raise ConfigError(
            "model.max_model_len needs model.rope_scaling.",
            hint="Type --rope_scaling yarn, or --max_length N to limit the samples.",
        )


def _check_names(config: Config) -> None:
    """Check that plugins which are needed later exist: a run should not train for hours and then fail to export."""
    if COPIES in config.logging.report_to:
        raise ConfigError(
            f"logging.report_to cannot name {COPIES!r}: it copies checkpoints, and needs a URL.",
            hint="Type: --checkpoint.copy_to s3://bucket/runs",
        )
    with about("logging.report_to"):
        for name in config.observers:
            find("swift.observers", name)
    if config.checkpoint.copy_to is not None:
        with about("checkpoint.copy_to"):
            check_protocol(
                config.checkpoint.copy_to, error=ConfigError, hint="For example: --checkpoint.copy_to s3://bucket/runs"
            )


def _name_model(draft: Draft) -> None:
    """Replace a model that transformers does not load by the nearest: the run's header, folder and files name that."""
    named = draft.get("model.path")
    if named is None or Path(str(named.value)).exists() or (found := stand_in(str(named.value))) is None:
        return
    model, note = found
    draft.replace("model.path", model, named.source)
    draft.note(note)


def _name_objective(draft: Draft, command: str) -> None:
    """Set the objective that the command or the model's task implies; refuse one that the command does not train."""
    task = draft.get("model.task")
    of_task = None if task is None else trained_by(str(task.value))
    if task is not None and of_task is not None and draft.get("objective.name") is None:
        draft.set("objective.name", of_task, task.source)
        if task.value not in TASKS:
            draft.drop("model.task")  # it is the objective's name
    requested = draft.get("objective.name")
    if requested is None:
        if (default := trained_by(command)) is not None:
            draft.set("objective.name", default, f"swift {command}")
            if default != command:
                draft.note(f"The objective is {default}, the default; --rlhf_type selects another.")
        elif command != "train":
            find("swift.commands", command)
    elif command != "train":
        _check_command(requested, command)


def _check_command(requested: Assignment, command: str) -> None:
    """Raise `ConfigError` for an objective that the command does not train, or that is unknown."""
    name = str(requested.value)
    if name in objective_names():
        trains = _command_that_trains(name)
        if trains not in (command, "train"):
            raise ConfigError(
                f"swift {command} does not train the objective {quoted(name)} ({requested.source}).",
                hint=f"Type: swift {_command_of(name, trains)}",
            )
    elif not is_in_file("swift.objectives", name):
        trained = [
            each for each in plugin_names("swift.objectives") if _command_that_trains(each) in (command, "train")
        ]
        raise unknown_value(requested.source, name, trained)


def _command_that_trains(objective: str) -> str:
    return str(load_objective(objective).object.command)


def _command_of(objective: str, command: str) -> str:
    """Return the arguments after `swift` that train an objective with its command."""
    return command if trained_by(command) == objective else f"{command} --objective {objective}"
