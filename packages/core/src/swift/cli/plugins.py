"""`swift plugins [--check] [--json]` and `swift plugins new KIND NAME`: list, check and write plugins."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from swift.cli.commands import collision
from swift.config.limits import Name
from swift.config.options import Argument, Section
from swift.errors import PluginError, SwiftError, UsageError, did_you_mean
from swift.installation import pip_install
from swift.plugins.discover import duplicates, list_plugins
from swift.plugins.entry import PluginEntry
from swift.plugins.kinds import KINDS, Kind
from swift.plugins.known import PACKAGES
from swift.terminal import print_line, result_alone

OK, FOUND = "ok", "found"


@dataclass(frozen=True)
class Row:
    """One plugin and its state."""

    entry: PluginEntry
    status: str

    @property
    def broken(self) -> bool:
        """Return whether it is known to be unusable."""
        return self.entry.allowed and self.status not in (OK, FOUND)


class PluginsOptions(Section):
    """List plugins of every kind with their distributions. Exit 3 if --check finds a broken one.

    new KIND NAME writes a package with a working plugin of a kind (tuner, objective, backend, ...) and its test.

    --try runs a short form of the conformance kit, swift-testing; the whole kit is swift_testing.BackendConformance.
    """

    examples = ("swift plugins --check", "swift plugins new tuner mine", "swift plugins --try fsdp --nproc 2")
    action: Annotated[Literal["new"] | None, Argument("new")] = Field(None, description="Write a package with a plugin")
    kind: Annotated[Name | None, Argument("KIND")] = Field(None, description="Kind of the new plugin")
    name: Annotated[Name | None, Argument("NAME")] = Field(None, description="Name of the new plugin, as users type it")
    check: bool = Field(False, description="Import each plugin and check it as a run would")
    as_json: bool = Field(False, alias="json", description="Print JSON")
    tried: Name | None = Field(
        None, alias="try", description="Train a tiny model with this backend, and compare it with plain torch"
    )
    nproc: Annotated[int, Field(ge=1, le=1024)] = Field(2, description="Processes for --try")


class PluginsCommand:
    """Implements `swift.contracts.Command`."""

    group = "Inspect"
    summary = "List and check installed plugins, or write a new one"
    options_model = PluginsOptions

    def run(self, options: PluginsOptions) -> int:
        if options.action == "new":
            return _new(options.kind, options.name)
        if options.tried is not None:
            return _try(options.tried, options.nproc)
        with result_alone() as say:
            rows = plugin_rows(check=options.check)
            if options.as_json:
                say(json.dumps([_facts(row) for row in rows], indent=2))
        if not options.as_json:
            _print_table(rows)
        return PluginError.exit_code if options.check and any(row.broken for row in rows) else 0


def _new(kind_name: str | None, name: str | None) -> int:
    """Write a package with a plugin, under the name of its distribution, into the working folder."""
    if kind_name is None or name is None:
        raise UsageError(
            "swift plugins new needs a kind and a name.", hint=f"For example: {PluginsOptions.examples[1]}"
        )
    kit = _conformance_kit("swift plugins new")
    kinds = {kind.name: kind for kind in KINDS.values() if kind.name in kit.template_kinds()}
    kind = kinds.get(kind_name)
    if kind is None:
        raise UsageError(
            f"There is no template for the kind {kind_name!r}.{did_you_mean(kind_name, kinds)}",
            hint=f"Kinds: {', '.join(kinds)}",
        )
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise UsageError(
            f"{name!r} cannot be the name of a plugin.", hint="Use lower-case letters and digits, with - or _ between."
        )
    folder = Path(f"swift-{name.replace('_', '-')}")
    _check_is_new(kind, name, folder)
    files = kit.new_plugin(kind.name, kind.group, name)
    try:
        folder.mkdir()
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}.", hint="Type it in another folder.") from error
    print_line(f"Wrote {folder}: {', '.join(files)}")
    print_line(f"\nThe {kind.name} {name} {kind.purpose.replace('NAME', name)}. Install and test it:")
    tried = [f"swift plugins --try {name}"] if kind.name == "backend" else []
    for command in (f"pip install -e ./{folder}", "swift plugins --check", *tried, f"python -m pytest {folder}"):
        print_line(f"  {command}")
    return 0


def _check_is_new(kind: Kind, name: str, folder: Path) -> None:
    """Refuse the name of an installed plugin, of a package, or of a folder that exists."""
    for entry in list_plugins():
        if (entry.kind, entry.name) == (kind.name, name):
            raise UsageError(f"{entry.distribution} has the {kind.name} {name!r}.", hint="Choose another name.")
    if folder.name in PACKAGES:
        raise UsageError(f"The package {folder} is swift's own.", hint="Choose another name.")
    if folder.exists():
        raise UsageError(f"{folder} exists.", hint="Choose another name, or move the folder.")


def _try(backend: str, processes: int) -> int:
    from swift.plugins.load import find, load

    kinds = [entry.kind for entry in list_plugins() if entry.name == backend]
    if kinds and "backend" not in kinds:
        raise UsageError(
            f"--try takes a backend, and {backend} is the name of: {', '.join(kinds)}.",
            hint="Run the test of its package instead: python -m pytest FOLDER",
        )
    load(find("swift.backends", backend))  # report an unknown name before heavy imports
    from swift.models.quiet import quiet_libraries

    quiet_libraries()
    short_form = _conformance_kit("--try").short_form
    print_line(f"{backend} on {processes} processes, compared with plain torch on one:")
    problems = 0
    for finding in short_form(backend, processes):
        problems += bool(finding.problem)
        status = "FAILED" if finding.problem else "ok" if finding.made else "not tried"
        print_line(f"  {status:<10} {finding.about}")
        if finding.problem:
            print_line(f"             {finding.problem}")
    return PluginError.exit_code if problems else 0


def _conformance_kit(needed_by: str) -> Any:
    try:
        return import_module("swift_testing")
    except ModuleNotFoundError as error:
        if error.name != "swift_testing":
            raise
        raise PluginError(
            f"{needed_by} needs the conformance kit, swift-testing, which is not installed.",
            hint=f"Type: {pip_install('swift-core[testing]')}",
        ) from error


def plugin_rows(*, check: bool) -> list[Row]:
    """Return a row for each installed plugin; only `check` imports them."""
    entries = list_plugins()
    shared = duplicates(entries)
    return [Row(entry, _status(entry, shared.get((entry.group, entry.name), []), check)) for entry in entries]


def _status(entry: PluginEntry, rivals: list[PluginEntry], check: bool) -> str:
    if not entry.allowed:
        return "not allowed (SWIFT_PLUGINS)"
    problem = entry.problem or collision(entry)
    if problem is not None:
        return f"{entry} {problem}"
    others = [rival.distribution for rival in rivals if rival != entry]
    if others:
        return f"name also taken by {', '.join(others)}"
    if not check:
        return FOUND
    from swift.plugins.load import load

    try:
        load(entry)
    except SwiftError as error:
        return str(error)
    return OK


def _facts(row: Row) -> dict[str, str | bool | None]:
    entry = row.entry
    return {
        "name": entry.name,
        "kind": entry.kind,
        "distribution": entry.distribution,
        "version": entry.version,
        "target": entry.target,
        "requires_core": entry.requires_core,
        "status": row.status,
        "usable": not row.broken and entry.allowed,
    }


def _print_table(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("Name", "Kind", "Distribution", "Version"):
        table.add_column(column, no_wrap=True)
    table.add_column("Status", overflow="fold")
    for row in rows:
        entry = row.entry
        style = "red" if row.broken else "green" if row.status == OK else "dim"
        status = Text(row.status, style=style)
        name = Text(entry.name if entry.name.isprintable() else repr(entry.name), style="bold")
        table.add_row(name, entry.kind, entry.distribution, entry.version, status)
    Console().print(table)
