"""Options of commands for forms, and checks of a command before it is started.

The dashboard's page for new runs uses it, with the errors of the command line. Nothing here imports torch, reads
weights or starts a process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.cli.commands import TRAINING, commands
from swift.cli.help import MOST_USED, groups_of
from swift.cli.options import options_of, read_options
from swift.config.fields import Field, core_fields, core_keys, model_fields
from swift.config.options import RunsCode
from swift.contracts import ExpectedMemory
from swift.data.sources.spec import TABLES
from swift.errors import SwiftError
from swift.model_names import RELEASED
from swift.observers.facts import resume_argv
from swift.parsing.aliases import flag_named
from swift.plugins.discover import plugin_names
from swift.plugins.kinds import KINDS, group_of_section
from swift.plugins.load import find, load
from swift.remote.hub_cache import cached_ids
from swift.remote.urls import is_remote
from swift.terminal import print_note, say_nothing

if TYPE_CHECKING:
    from pydantic import BaseModel

    from swift.parsing import Parsed

__all__ = [
    "RELEASED",
    "TABLES",
    "CheckedCommand",
    "FormField",
    "FormSection",
    "cached_ids",
    "check_command",
    "form_of",
    "resume_argv",
]


@dataclass(frozen=True)
class FormField:
    """One option, as a form shows it."""

    key: str
    """`section.name` for a run; the name alone for other commands."""
    flag: str
    """What is typed for it; empty for a positional argument."""
    kind: str
    """'switch', 'list', 'mapping' or 'value'."""
    type: str
    """For people: 'integer', 'number', 'string'."""
    choices: tuple[str, ...]
    """The valid values, where they can be listed, such as names of installed plugins."""
    default: Any
    required: bool
    description: str
    bounds: str = ""
    selects: bool = False
    """Whether it selects a plugin, which has other options."""
    often: bool = False
    """Whether it is among the most used."""


@dataclass(frozen=True)
class FormSection:
    """A group of options."""

    name: str
    title: str
    fields: tuple[FormField, ...]
    problem: str = ""
    """Why a plugin's own options are missing: the error of the plugin."""


@dataclass(frozen=True)
class CheckedCommand:
    """A valid command, and its effects."""

    command: str
    notes: tuple[str, ...] = ()
    """Notes for the user."""
    processes: int = 1
    writes: tuple[Path, ...] = ()
    """Folders that it writes into."""
    run_folder: Path | None = None
    """The run's folder, if the run has a name."""
    trusts: tuple[str, ...] = ()
    """Third-party code that it would run: of a model, or Python files that options name."""
    hosts: tuple[str, ...] = ()
    """Addresses that it listens on."""
    sends: tuple[str, ...] = ()
    """URLs that it copies checkpoints or exports to."""
    expected: ExpectedMemory | None = None
    """Estimate of an installed planner, if requested."""


def form_of(command: str, selected: Mapping[str, str] | None = None) -> list[FormSection]:
    """Return the options of a command. For a run, `selected` selects plugins by key: `{"backend.name": "fsdp"}`.

    Options of plugins are in their sections.
    """
    if command in TRAINING:
        from swift.config.sections import Config

        return [_section_of_run(name, selected or {}) for name in Config.model_fields] + [_processes()]
    options = options_of(command)
    assert options is not None
    return [
        FormSection(
            f"group-{number}",
            group.title or commands()[command].summary,
            tuple(_field(each, "") for each in group.fields),
        )
        for number, group in enumerate(groups_of(options))
    ]


def _section_of_run(name: str, selected: Mapping[str, str]) -> FormSection:
    from swift.config.sections import Config

    group = group_of_section(name)
    own = core_keys(name)
    fields = {
        each.key: each for key, each in core_fields().items() if each.section == name and key[len(name) + 1 :] in own
    }
    selects = "" if group is None else f"{name}.{KINDS[group].selected_by}"
    problem = ""
    if group is not None:
        try:
            chosen = load(find(group, selected.get(selects) or str(fields[selects].default)))
            assert chosen.config_model is not None
            fields |= {each.key: each for each in model_fields(chosen.config_model, name)}
        except SwiftError as error:
            problem = str(error)
    position = {key: number for number, key in enumerate(MOST_USED)}
    ordered = sorted(fields.values(), key=lambda each: (each.key != selects, position.get(each.key, len(position))))
    made = [_field(each, flag_named(each)) for each in ordered]
    if group is not None:
        names = tuple(plugin_names(group))
        made = [
            replace(each, choices=names, selects=True, often=True) if each.key == selects else each for each in made
        ]
    summary = (Config.model_fields[name].annotation.__doc__ or "").split("\n")[0]
    return FormSection(name, summary, tuple(made), problem)


def _processes() -> FormSection:
    count = Field("nproc", "value", True, None, "Processes on this machine, one for each GPU", "integer", "≥ 1")
    return FormSection("processes", "Number of processes.", (replace(_field(count, "nproc"), often=True),))


def _field(each: Field, flag: str) -> FormField:
    return FormField(
        key=each.key,
        flag="" if each.argument else flag or each.key,
        kind=each.kind,
        type=each.type_name,
        choices=("true", "false") if each.kind == "switch" else each.choices,
        default=_plain(each.default),
        required=each.required,
        description=each.description,
        bounds=each.bounds,
        often=each.key in MOST_USED or each.argument is not None or each.required,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else str(value)


def check_command(argv: Sequence[str], *, expect: bool = False) -> CheckedCommand:
    """Return the effects of `swift ARGV`, or raise its error, without starting it.

    `expect` estimates the memory of a run with an installed planner.
    """
    command, args = argv[0], list(argv[1:])
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        checked = _check_run(command, args, expect) if command in TRAINING else _check_other(command, args)
    notes = [line.removeprefix("Note: ") for line in printed.getvalue().splitlines()]
    return replace(checked, notes=(*notes, *checked.notes))


def _check_run(command: str, args: list[str], expect: bool) -> CheckedCommand:
    from swift.cli.planner_choice import chosen
    from swift.cli.preflight import check_here, check_run
    from swift.parsing import parse
    from swift.plugins import planners
    from swift.processes.group import processes_in_all

    args = chosen(args, command, say_nothing)
    parsed = parse(args, command)
    with parsed.naming_sources():
        check_here(parsed.config)
        processes = processes_in_all(parsed.environment, parsed.nproc)
        run = check_run(parsed, processes)
    config = parsed.config
    writes = [config.logging.output] + [each for each in (config.export.out,) if each is not None]
    return CheckedCommand(
        command,
        tuple(parsed.notes),
        processes,
        tuple(path.absolute() for path in writes),
        _run_folder(parsed),
        _code_of(parsed),
        sends=tuple(filter(None, [config.checkpoint.copy_to])),
        expected=planners.expected(run, args, command, say=print_note) if expect else None,
    )


def _run_folder(parsed: Parsed) -> Path | None:
    from swift.train.run_folder import folder_of_name

    config = parsed.config
    return None if config.logging.run_name is None else folder_of_name(config, config.model.path or "model")


def _code_of(parsed: Parsed) -> tuple[str, ...]:
    """Return the third-party code that the run would execute."""
    found = ["model.trust_remote_code"] if parsed.config.model.trust_remote_code else []
    objective = RunsCode.files(parsed.config.objective.name)
    return (*found, *objective, *_files_of(parsed.objective.options))


def _files_of(options: BaseModel) -> list[str]:
    marked = RunsCode.fields(type(options))
    return [file for name in marked for file in RunsCode.files(getattr(options, name)) if getattr(options, name)]


def _check_other(command: str, args: list[str]) -> CheckedCommand:
    options_model = options_of(command)
    assert options_model is not None
    passes_on = command in ("serve", "deploy")
    typed = read_options(command, args, options_model, passes_on=passes_on)
    options: Any = typed.options
    if command in ("export", "merge-lora"):
        from swift.cli.export import check_export

        _, destination = check_export(options)
        out = [destination]
    else:
        out = [each for each in (getattr(options, "result_path", None),) if each is not None]
    trusts = ["trust_remote_code"] if getattr(options, "trust_remote_code", False) else []
    return CheckedCommand(
        command,
        writes=tuple(Path(each).absolute() for each in out),
        trusts=(*trusts, *typed.passed_on, *_files_of(options)),
        hosts=tuple(filter(None, [getattr(options, "host", None)])),
        sends=tuple(url for url in (getattr(options, "push", None),) if url is not None and is_remote(url)),
    )
