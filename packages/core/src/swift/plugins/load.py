"""Selecting a plugin by the name that users type: found, imported, checked. Each failure says what fixes it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swift.contracts import HOOK_API, Capabilities
from swift.errors import PluginError, SwiftError, did_you_mean
from swift.plugins.blame import failing, interrupts, upgrade, words_of
from swift.plugins.check import check_hook_api
from swift.plugins.discover import ALLOW_LIST, list_plugins
from swift.plugins.entry import CORE, PluginEntry
from swift.plugins.kinds import KINDS
from swift.plugins.known import KNOWN, install_command
from swift.plugins.waiting import waiting_for
from swift.version import __version__

if TYPE_CHECKING:
    from pydantic import BaseModel

    from swift.config.sections import Config


_PASSED: dict[tuple[PluginEntry, int], type] = {}
"""Classes whose plugins have passed: one command selects a plugin several times, and looking costs milliseconds."""
_LOADED: set[PluginEntry] = set()
"""Plugins that were loaded once: nobody waits for them again."""


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin that passed the checks of its kind."""

    entry: PluginEntry
    object: Any
    """What is registered: an instance, or a module. For an objective, the class."""
    hook_api: tuple[int, int] = HOOK_API
    capabilities: Capabilities | None = None
    """Of a backend."""
    config_model: type[BaseModel] | None = None
    """Validates the backend's section, or the objective's options."""


def load_backend(name: str) -> LoadedPlugin:
    """Return the backend that users call `name`."""
    return load(find("swift.backends", name))


def load_exporter(name: str) -> LoadedPlugin:
    """Return the exporter that users call `name`."""
    return load(find("swift.exporters", name))


def load_engine(name: str) -> LoadedPlugin:
    """Return the inference engine that users call `name`."""
    return load(find("swift.engines", name))


def load_objective(name: str) -> LoadedPlugin:
    """Return the objective that users call `name`; `object` is its class, to be made with its options."""
    return load(find("swift.objectives", name))


def load_observers(names: Iterable[str]) -> list[LoadedPlugin]:
    """Return the observers of these names, in this order."""
    return [load(find("swift.observers", name)) for name in names]


def observers_of(config: Config) -> list[LoadedPlugin]:
    """Return the observers of a run: those that it names, and those of installed planners."""
    return load_observers(dict.fromkeys((*config.observers, *_of_planners())))


def _of_planners() -> list[str]:
    """Return the names of observers that have the name and the distribution of a planner."""
    planners = {(each.name, each.distribution) for each in list_plugins("swift.planners") if each.allowed}
    observers = [each for each in list_plugins("swift.observers") if each.allowed]
    return [each.name for each in observers if (each.name, each.distribution) in planners]


def load_optimizer(name: str) -> LoadedPlugin:
    """Return the optimizer that users call `name`; `object` is a `swift.contracts.Optimizer`."""
    return load(find("swift.optimizers", name))


def load_tuner(name: str) -> LoadedPlugin:
    """Return the tuner that users call `name`; `object` is a `swift.contracts.Tuner`."""
    return load(find("swift.tuners", name))


def load_command(name: str) -> LoadedPlugin:
    """Return the command that a plugin adds under `name`; `object` is a `swift.contracts.Command`."""
    return load(find("swift.commands", name))


def find(group: str, name: str) -> PluginEntry:
    """Return the one installed and allowed plugin of that name."""
    installed = list_plugins(group)
    same = [entry for entry in installed if entry.name == name]
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
    raise _not_installed(group, name, installed)


def load(entry: PluginEntry) -> LoadedPlugin:
    """Import one plugin and make the checks of its kind. Whatever is wrong with it is a `PluginError`."""
    if entry.problem is not None:
        raise PluginError(f"{entry} {entry.problem}.", hint=f"If the plugin is not yours: {upgrade(entry)}")
    kind = KINDS[entry.group]
    _check_core_requirement(entry)
    # A command's output may be what a program reads on.
    with nullcontext() if _is_there(entry) else waiting_for(entry, "importing"), redirect_stdout(sys.stderr):
        target = _import(entry)
        with failing(entry, "HOOK_API"):
            hook_api = check_hook_api(entry, target, must_state=kind.states_api)
        plugin = _make(entry, target) if kind.made and isinstance(target, type) else target
        if kind.adapt is not None:
            with failing(entry, entry.target):
                plugin = kind.adapt(entry, plugin)
        made_of = entry, id(target)  # a class compares as its metaclass says
        if made_of not in _PASSED:
            with failing(entry, "its checks"):
                kind.check(entry, plugin)
        if isinstance(target, type):
            _PASSED[made_of] = target
    _LOADED.add(entry)
    capabilities = getattr(plugin, "capabilities", None) if kind.states_api else None
    return LoadedPlugin(entry, plugin, hook_api, capabilities, kind.options_of(plugin))


def _is_there(entry: PluginEntry) -> bool:
    """Return whether the plugin was loaded before, and its module still is, so that nobody waits for it again."""
    return entry in _LOADED and entry.target.partition(":")[0].strip() in sys.modules


def _check_core_requirement(entry: PluginEntry) -> None:
    if not entry.requires_core:
        return
    from packaging.specifiers import SpecifierSet

    if not SpecifierSet(entry.requires_core).contains(__version__, prereleases=True):
        raise PluginError(
            f"{entry} needs {CORE} {entry.requires_core}, but {__version__} is installed.",
            hint=f'Run: pip install --upgrade "{CORE}{entry.requires_core}" {entry.distribution}',
        )


def _import(entry: PluginEntry) -> Any:
    module, _, attribute = entry.target.partition(":")
    try:
        target: Any = importlib.import_module(module.strip())
        for part in filter(None, attribute.split("[")[0].strip().split(".")):
            target = getattr(target, part)
    except BaseException as cause:  # whatever a plugin's code raises when it is imported
        if issubclass(type(cause), SwiftError) or interrupts(cause):
            raise
        raise _failed(entry, "could not be imported", cause, f"Run: {_fix_for_import(entry, cause)}") from cause
    return target


def _failed(entry: PluginEntry, what: str, cause: BaseException, hint: str) -> PluginError:
    failure = PluginError(f"{entry} {what}: {words_of(cause)}", hint=hint)
    failure.traceback_of = cause
    return failure


def _fix_for_import(entry: PluginEntry, cause: BaseException) -> str:
    known = install_command(entry.group, entry.name)
    if known:
        return known.replace("pip install", "pip install --upgrade")
    missing: str | None = getattr(cause, "name", None) if issubclass(type(cause), ModuleNotFoundError) else None
    own_package = entry.target.partition(":")[0].split(".")[0]
    if missing and missing.split(".")[0] == own_package:
        return f"pip install --force-reinstall --no-deps {entry.distribution}"
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
        hint=f"Uninstall one of them (pip uninstall {removable[0]}), or allow only the one that you want: "
        f"{ALLOW_LIST}={distributions[0] if CORE not in distributions else CORE}",
    )


def _not_installed(group: str, name: str, installed: list[PluginEntry]) -> PluginError:
    kind = KINDS[group].name
    command = install_command(group, name)
    if command:
        return PluginError(f"The {kind} {name!r} is not installed.", hint=f"Run: {command}")
    usable = sorted({entry.name for entry in installed if entry.allowed})
    known = sorted(set(usable) | set(KNOWN.get(group, ())))
    return PluginError(
        f"There is no {kind} {name!r}.{did_you_mean(name, known)}",
        hint=f"Installed: {', '.join(usable) or 'none'}. See: swift plugins",
    )
