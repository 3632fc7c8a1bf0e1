"""`swift plugins [--check] [--json]`: what is installed, and whether it can be used."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from swift.cli.app import run_app
from swift.errors import PluginError, SwiftError
from swift.plugins.discover import PluginEntry, duplicates, list_plugins
from swift.plugins.load import find, load

OK, FOUND = "ok", "found"


@dataclass(frozen=True)
class Row:
    """One plugin and what is to be said about it."""

    entry: PluginEntry
    status: str

    @property
    def broken(self) -> bool:
        """Whether something is known that keeps it from being used."""
        return self.entry.allowed and self.status not in (OK, FOUND)


def run(_verb: str, args: list[str]) -> int:
    """The verb."""
    return run_app("swift plugins", show, args)


def show(
    check: Annotated[bool, typer.Option("--check", help="Import each one and make the checks of selection")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs")] = False,
    tried: Annotated[
        str | None, typer.Option("--try", metavar="BACKEND", help="Train a tiny model with it, and compare the numbers")
    ] = None,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Processes for --try")] = 2,
) -> int:
    """List backends, exporters, objectives and observers that are installed. Exit 3 if --check finds a broken one.

    --try runs a short form of the conformance kit; the whole of it is swift.testing.BackendConformance.
    """
    if tried is not None:
        return _try(tried, nproc)
    rows = plugin_rows(check=check)
    if as_json:
        sys.stdout.write(json.dumps([_facts(row) for row in rows], indent=2) + "\n")
    else:
        _print_table(rows)
    return PluginError.exit_code if check and any(row.broken for row in rows) else 0


def _try(backend: str, processes: int) -> int:
    load(find("swift.backends", backend))  # a mistake in the name is said before anything heavy is imported
    from swift.models.quiet import quiet_libraries

    quiet_libraries()
    from swift.testing.short import short_form

    sys.stdout.write(f"{backend} on {processes} processes, against plain torch on one:\n")
    problems = 0
    for finding in short_form(backend, processes):
        problems += bool(finding.problem)
        sys.stdout.write(f"  {'FAILED' if finding.problem else 'ok':<7} {finding.about}\n")
        if finding.problem:
            sys.stdout.write(f"          {finding.problem}\n")
        sys.stdout.flush()
    return PluginError.exit_code if problems else 0


def plugin_rows(*, check: bool) -> list[Row]:
    """One row for each plugin installed; only with `check` is any of them imported."""
    entries = list_plugins()
    shared = duplicates(entries)
    return [Row(entry, _status(entry, shared.get((entry.group, entry.name), []), check)) for entry in entries]


def _status(entry: PluginEntry, rivals: list[PluginEntry], check: bool) -> str:
    if not entry.allowed:
        return "not allowed (SWIFT_PLUGINS)"
    if entry.problem is not None:
        return f"{entry} {entry.problem}"
    others = [rival.distribution for rival in rivals if rival != entry]
    if others:
        return f"name also taken by {', '.join(others)}"
    if not check:
        return FOUND
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


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)


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
        table.add_row(Text(_shown(entry.name), style="bold"), entry.kind, entry.distribution, entry.version, status)
    Console().print(table)
