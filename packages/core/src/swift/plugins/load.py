"""Selecting a plugin by the name that users type: found, imported, checked. Each error names the fix."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.contracts import HOOK_API, Capabilities
from swift.errors import PluginError, SwiftError, did_you_mean
from swift.hookspecs import BackendHooks
from swift.installation import pip_install, pip_uninstall
from swift.plugins.blame import error_line, failing, interrupts, upgrade
from swift.plugins.check import check_hook_api
from swift.plugins.discover import ALLOW_LIST, allowed_plugins, list_plugins, plugin_names
from swift.plugins.entry import CORE, PluginEntry
from swift.plugins.kinds import KINDS
from swift.plugins.known import KNOWN, install_command
from swift.plugins.python_files import entry_of, import_file, is_in_file
from swift.version import __version__

if TYPE_CHECKING:
    from pydantic import BaseModel

    from swift.config.sections import Config


PATIENCE = 5.0
"""Seconds until the user is shown which plugin the command waits for."""
_PASSED: dict[PluginEntry, object] = {}
"""Targets that have passed the checks: one command selects a plugin several times, and checks cost milliseconds."""


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin that passed the checks of its kind."""

    entry: PluginEntry
    object: Any
    """What is registered: an instance, or a module. For an objective, the class."""
    hook_api: tuple[int, int] = HOOK_API
    capabilities: Capabilities = field(default_factory=Capabilities)
    """Of a backend."""
    config_model: type[BaseModel] | None = None
    """Validates the backend's section, or the objective's options."""


def load_plugin(group: str, name: str) -> LoadedPlugin:
    """Return the installed plugin of a kind, such as `swift.rewards`, and a name; raise `PluginError` without one."""
    return load(find(group, name))


load_backend = partial(load_plugin, "swift.backends")
load_exporter = partial(load_plugin, "swift.exporters")
load_engine = partial(load_plugin, "swift.engines")
load_objective = partial(load_plugin, "swift.objectives")
load_optimizer = partial(load_plugin, "swift.optimizers")
load_tuner = partial(load_plugin, "swift.tuners")
load_command = partial(load_plugin, "swift.commands")
"""Each returns the plugin of a name. The `object` of an objective is its class, to be made with options."""


def load_observers(names: Iterable[str]) -> list[LoadedPlugin]:
    """Return the observers of these names, in this order."""
    return [load_plugin("swift.observers", name) for name in names]


def observers_of(config: Config) -> list[LoadedPlugin]:
    """Return the observers of a run: those that it names, and those of installed planners."""
    return load_observers(dict.fromkeys((*config.observers, *_of_planners())))


def _of_planners() -> list[str]:
    """Return the names of observers that have the name and the distribution of a planner."""
    planners = {(each.name, each.distribution) for each in allowed_plugins("swift.planners")}
    return [each.name for each in allowed_plugins("swift.observers") if (each.name, each.distribution) in planners]


def find(group: str, name: str) -> PluginEntry:
    """Return the one installed and allowed plugin of that name, or of a Python file (`FILE.py:NAME`)."""
    if is_in_file(group, name):
        return entry_of(group, name)
    same = [entry for entry in list_plugins(group) if entry.name == name]
    allowed = [entry for entry in same if entry.allowed]
    if len(allowed) == 1:
        return allowed[0]
    if allowed:
        raise _ambiguous(allowed)
    if same:
        raise PluginError(
            f"{same[0]} is installed, but {ALLOW_LIST} leaves it out.",
            hint=f"Add {same[0].distribution} to {ALLOW_LIST}, or unset it.",
        )
    raise _not_installed(group, name)


def load(entry: PluginEntry) -> LoadedPlugin:
    """Import one plugin and make the checks of its kind. Raise `PluginError` for whatever is wrong with it."""
    if entry.problem is not None:
        raise PluginError(f"{entry} {entry.problem}.", hint=f"If the plugin is not yours: {upgrade(entry)}")
    kind = KINDS[entry.group]
    _check_core_requirement(entry)
    imported = entry.target.partition(":")[0].strip() in sys.modules
    # Standard output is for the result of the command.
    with nullcontext() if imported else waiting_for(entry, "importing"), redirect_stdout(sys.stderr):
        target = _import(entry)
        with failing(entry, "HOOK_API"):
            hook_api = check_hook_api(entry, target, required=kind.states_api)
        plugin = _make(entry, target) if kind.made and isinstance(target, type) else target
        if kind.adapt is not None:
            with failing(entry, entry.target):
                plugin = kind.adapt(entry, plugin)
        if entry not in _PASSED or _PASSED[entry] is not target:
            with failing(entry, "its checks"):
                kind.check(entry, plugin)
            _PASSED[entry] = target
    capabilities = plugin.capabilities if kind.contract is BackendHooks else Capabilities()
    return LoadedPlugin(entry, plugin, hook_api, capabilities, kind.options_of(plugin))


@contextmanager
def waiting_for(entry: PluginEntry, doing: str) -> Iterator[None]:
    """Print which plugin is being waited for if this takes longer than a moment. Nothing is ended."""

    def say() -> None:
        sys.stderr.write(f"Still {doing} {entry}. Ctrl-C ends the command.\n")
        sys.stderr.flush()

    if os.environ.get("RANK", "0") != "0":
        yield
        return
    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _check_core_requirement(entry: PluginEntry) -> None:
    if f"{CORE}=={__version__}" in entry.requirements or not entry.requires_core:
        return
    from packaging.specifiers import SpecifierSet

    if not SpecifierSet(entry.requires_core).contains(__version__, prereleases=True):
        raise PluginError(
            f"{entry} needs {CORE} {entry.requires_core}, but {__version__} is installed.",
            hint=f"Run: {pip_install(f'{CORE}{entry.requires_core}', entry.distribution, upgrade=True)}",
        )


def _import(entry: PluginEntry) -> Any:
    module, _, attribute = entry.target.rpartition(":") if not entry.distribution else entry.target.partition(":")
    try:
        target: Any = import_file(Path(module)) if not entry.distribution else importlib.import_module(module.strip())
        for part in filter(None, attribute.split("[")[0].strip().split(".")):
            target = getattr(target, part)
    except BaseException as cause:  # whatever a plugin's code raises when it is imported
        if issubclass(type(cause), SwiftError) or interrupts(cause):
            raise
        hint = f"Run: {_fix_for_import(entry, cause)}" if entry.distribution else f"Correct {module}."
        raise _failed(entry, "could not be imported", cause, hint) from cause
    return target


def _failed(entry: PluginEntry, what: str, cause: BaseException, hint: str) -> PluginError:
    failure = PluginError(f"{entry} {what}: {error_line(cause)}", hint=hint)
    failure.traceback_of = cause
    return failure


def _fix_for_import(entry: PluginEntry, cause: BaseException) -> str:
    if known := install_command(entry.group, entry.name, upgrade=True):
        return known
    missing: str | None = getattr(cause, "name", None) if issubclass(type(cause), ModuleNotFoundError) else None
    own_package = entry.target.partition(":")[0].split(".")[0]
    if missing and missing.split(".")[0] == own_package:
        return pip_install("--force-reinstall", "--no-deps", entry.distribution)
    return upgrade(entry)


def _make(entry: PluginEntry, target: type) -> Any:
    try:
        return target()
    except BaseException as cause:
        if issubclass(type(cause), SwiftError) or interrupts(cause):
            raise
        hint = f"A plugin's class is called without arguments. If it is not yours: {upgrade(entry)}"
        raise _failed(entry, "could not be made", cause, hint) from cause


def _ambiguous(rivals: list[PluginEntry]) -> PluginError:
    distributions = [entry.distribution for entry in rivals]
    removable = [name for name in distributions if name != CORE]
    return PluginError(
        f"{rivals[0].kind} {rivals[0].name!r} is provided by {len(rivals)} distributions: "
        + ", ".join(f"{entry.distribution} {entry.version}" for entry in rivals)
        + ".",
        hint=f"Uninstall one of them ({pip_uninstall(removable[0])}), or allow only the one that you want: "
        f"{ALLOW_LIST}={distributions[0] if CORE not in distributions else CORE}",
    )


def _not_installed(group: str, name: str) -> PluginError:
    kind = KINDS[group].name
    command = install_command(group, name)
    if command:
        return PluginError(f"The {kind} {name!r} is not installed.", hint=f"Run: {command}")
    usable = plugin_names(group)
    known = sorted(set(usable) | set(KNOWN.get(group, ())))
    return PluginError(
        f"There is no {kind} {name!r}.{did_you_mean(name, known)}",
        hint=f"Installed: {', '.join(usable) or 'none'}. See: swift plugins",
    )
