"""What a plugin must look like before a run may use it: its hook API, and the hooks that it implements.

pluggy ignores a method without `@hookimpl`, and never fills an argument that has a default value. Both would be
silent mistakes, so they are looked for here.
"""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pluggy

from swift.contracts import HOOK_API, Capabilities
from swift.errors import PluginError, did_you_mean
from swift.hookspecs import (
    BACKEND_REQUIRED,
    ENGINE_REQUIRED,
    EXPORTER_REQUIRED,
    BackendHooks,
    EngineHooks,
    ExporterHooks,
    ObserverHooks,
)
from swift.plugins.discover import PluginEntry


def _hooks_of(spec: type) -> dict[str, tuple[str, ...]]:
    """Hook name → the arguments that it offers."""
    return {
        name: tuple(inspect.signature(function).parameters)[1:]
        for name, function in vars(spec).items()
        if name.startswith("swift_")
    }


_HOOKS = {
    "backend": _hooks_of(BackendHooks),
    "exporter": _hooks_of(ExporterHooks),
    "engine": _hooks_of(EngineHooks),
    "observer": _hooks_of(ObserverHooks),
}
_ARGUMENTS = {hook: arguments for hooks in _HOOKS.values() for hook, arguments in hooks.items()}
_REQUIRED = {
    "backend": BACKEND_REQUIRED,
    "exporter": EXPORTER_REQUIRED,
    "engine": ENGINE_REQUIRED,
    "observer": (),
}
_OBJECTIVE_MEMBERS = ("options_model", "row_weight", "loss", "given")


@dataclass(frozen=True)
class Implementation:
    """One method of a plugin that implements a hook."""

    hook: str
    method: str
    wrapper: bool
    signature: inspect.Signature


def check_hook_api(entry: PluginEntry, plugin: Any) -> tuple[int, int]:
    """The hook API that a plugin was written for; raises when this core does not speak it.

    A backend must say. Exporters and observers may, and are otherwise taken to need the first of this major version.
    """
    optional = None if entry.kind == "backend" else (HOOK_API[0], 0)
    written_for = getattr(plugin, "HOOK_API", optional)
    if (
        not isinstance(written_for, tuple)
        or len(written_for) != 2
        or not all(isinstance(number, int) for number in written_for)
    ):
        raise PluginError(
            f"{entry} does not say which hook API it was written for: HOOK_API is {written_for!r}.",
            hint=f"Set HOOK_API = {HOOK_API} on the plugin, or, if it is not yours: {upgrade(entry)}",
        )
    major, minor = written_for
    if major == HOOK_API[0] and minor <= HOOK_API[1]:
        return major, minor
    message = f"{entry} was written for hook API {major}.{minor}, but this core speaks {HOOK_API[0]}.{HOOK_API[1]}."
    newer = (major, minor) > HOOK_API
    raise PluginError(message, hint=f"Run: {'pip install --upgrade swift-core' if newer else upgrade(entry)}")


def check_hooks(entry: PluginEntry, plugin: Any) -> None:
    """Known hooks only, with arguments that exist, and each required one implemented exactly once."""
    implementations = _implementations(entry, plugin)
    for implementation in implementations:
        _check_implementation(entry, implementation)
    counts = Counter(found.hook for found in implementations if not found.wrapper)
    own = {**_HOOKS[entry.kind], **_HOOKS["observer"]}
    for hook, count in counts.items():
        if hook not in own:
            owner = next(kind for kind, hooks in _HOOKS.items() if hook in hooks)
            raise _faulty(
                entry,
                f"implements {hook}, which only the selected {owner} may do",
                "Make it a wrapper: @hookimpl(wrapper=True)",
            )
        if count > 1:
            methods = ", ".join(found.method for found in implementations if found.hook == hook and not found.wrapper)
            raise _faulty(entry, f"implements {hook} {count} times ({methods})", "Keep one of them")
    missing = [hook for hook in _REQUIRED[entry.kind] if hook not in counts]
    if missing:
        raise _faulty(entry, f"does not implement {', '.join(missing)}", f"Every {entry.kind} implements them once")


def check_backend_attributes(entry: PluginEntry, plugin: Any) -> None:
    """A backend declares `capabilities`, and `config_model` for its section of the configuration."""
    from pydantic import BaseModel

    capabilities = getattr(plugin, "capabilities", None)
    if not isinstance(capabilities, Capabilities):
        raise _faulty(
            entry, f"declares {capabilities!r} as its capabilities", "Give the plugin a swift.Capabilities attribute"
        )
    config_model = getattr(plugin, "config_model", None)
    if not (isinstance(config_model, type) and issubclass(config_model, BaseModel)):
        raise _faulty(entry, f"declares {config_model!r} as its config_model", "Give the plugin a pydantic model class")


def check_objective_class(entry: PluginEntry, target: Any) -> None:
    """An objective is a class with the members of `swift.contracts.Objective`, and an `options_model`."""
    missing = [member for member in _OBJECTIVE_MEMBERS if not hasattr(target, member)]
    if not isinstance(target, type) or missing:
        problem = f"lacks {', '.join(missing)}" if missing else "is not a class"
        raise _faulty(entry, problem, "See the members of swift.contracts.Objective")


def upgrade(entry: PluginEntry) -> str:
    """The command that brings the newest release of a plugin, with all that it depends on."""
    return f"pip install --upgrade {entry.distribution}"


def _implementations(entry: PluginEntry, plugin: Any) -> list[Implementation]:
    manager = pluggy.PluginManager("swift")
    found = []
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            if name.startswith("swift_") and inspect.isroutine(getattr(plugin, name)):
                raise _faulty(
                    entry, f"has a method {name} without @hookimpl, which would never be called", "Decorate it"
                )
            continue
        found.append(
            Implementation(
                hook=options.get("specname") or name,
                method=name,
                wrapper=bool(options.get("wrapper") or options.get("hookwrapper")),
                signature=inspect.signature(getattr(plugin, name)),
            )
        )
    return found


def _check_implementation(entry: PluginEntry, found: Implementation) -> None:
    if found.hook not in _ARGUMENTS:
        raise _faulty(
            entry, f"implements an unknown hook {found.hook!r}", f"Rename it.{did_you_mean(found.hook, _ARGUMENTS)}"
        )
    offered = _ARGUMENTS[found.hook]
    for argument, parameter in found.signature.parameters.items():
        if parameter.default is not parameter.empty:
            raise _faulty(
                entry,
                f"gives {argument!r} of {found.method} a default value, which would hide the real one",
                f"Write {argument} without '='",
            )
        if argument not in offered or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _faulty(
                entry,
                f"asks for {str(parameter)!r} in {found.method}, but {found.hook} offers {', '.join(offered)}",
                f"Rename it.{did_you_mean(argument, offered)}",
            )


def _faulty(entry: PluginEntry, problem: str, remedy: str) -> PluginError:
    stop = "" if remedy[-1] in ".?" else "."
    return PluginError(f"{entry} {problem}.", hint=f"{remedy}{stop} If the plugin is not yours: {upgrade(entry)}")
