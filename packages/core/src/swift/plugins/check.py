"""Checks of a plugin before a run may use it: its hook API, its hooks, and the members that its contract declares.

pluggy ignores a method without `@hookimpl`, and never fills an argument that has a default value. Both would be
silent mistakes, so they are looked for here.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pluggy

from swift.contracts import HOOK_API, Objective, Vocabulary
from swift.errors import PluginError, did_you_mean
from swift.hookspecs import KIND_OF_HOOK, SPECS
from swift.installation import pip_install
from swift.plugins.blame import error_line, upgrade
from swift.plugins.entry import CORE, PluginEntry
from swift.plugins.known import PACKAGES
from swift.plugins.return_values import ABSENT, check_attributes, check_methods, described

_ARGUMENTS = {hook: tuple(inspect.signature(spec).parameters)[1:] for hook, spec in SPECS.items()}
_OF_EVERY_OBJECT = frozenset(dir(type("Any", (), {})))
"""Names that none of a plugin's methods has; to look at them would be most of the work."""
_ROW_WEIGHT = (
    "Define row_weight(self, samples), by which the sum of losses is divided: sum(sample.loss_weight for sample in "
    "samples) for a loss per token. For a loss per sample derive from swift.objectives.base.PerSampleObjective"
)


@dataclass(frozen=True)
class Implementation:
    """One method of a plugin that implements a hook."""

    hook: str
    method: str
    wrapper: bool
    signature: inspect.Signature
    options: Mapping[str, Any]
    """As `hookimpl` took them."""


def check_hook_api(entry: PluginEntry, plugin: Any, *, required: bool) -> tuple[int, int]:
    """Return the hook API that a plugin was written for; raise when this core has another one.

    A plugin that may leave it out, and does, is taken to need the first of this major version.
    """
    written_for = getattr(plugin, "HOOK_API", None if required else (HOOK_API[0], 0))
    if not isinstance(written_for, tuple) or [type(number) for number in written_for] != [int, int]:
        raise PluginError(
            f"{entry} declares no hook API: HOOK_API is {written_for!r}.",
            hint=f"Set HOOK_API = {HOOK_API} on the plugin, or, if it is not yours: {upgrade(entry)}",
        )
    major, minor = written_for
    if major == HOOK_API[0] and minor <= HOOK_API[1]:
        return major, minor
    newer = (major, minor) > HOOK_API
    raise PluginError(
        f"{entry} was written for hook API {major}.{minor}, but this core has {HOOK_API[0]}.{HOOK_API[1]}.",
        hint=f"Run: {pip_install(CORE, upgrade=True) if newer else upgrade(entry)}",
    )


def check_hooks(entry: PluginEntry, plugin: Any, required: Collection[str]) -> None:
    """Refuse unknown hooks, arguments that do not exist, and required hooks that are not implemented exactly once."""
    found_hooks = implementations(entry, plugin)
    for implementation in found_hooks:
        _check_signature(entry, implementation)
        _check_call(entry, plugin, implementation)
    counts = Counter(found.hook for found in found_hooks if not found.wrapper)
    for hook, count in counts.items():
        if KIND_OF_HOOK[hook] not in (entry.kind, "observer"):
            raise faulty(
                entry,
                f"implements {hook}, which only the selected {KIND_OF_HOOK[hook]} may do",
                "Make it a wrapper: @hookimpl(wrapper=True)",
            )
        if count > 1:
            methods = ", ".join(found.method for found in found_hooks if found.hook == hook and not found.wrapper)
            raise faulty(entry, f"implements {hook} {count} times ({methods})", "Keep one of them")
    if missing := [hook for hook in required if hook not in counts]:
        raise faulty(entry, f"does not implement {', '.join(missing)}", f"Every {entry.kind} implements them once")
    if not found_hooks:
        raise faulty(entry, f"names {described(plugin)}, which implements no hook", "Name a class, object or module")


def check_contract(entry: PluginEntry, plugin: Any, contract: type, optional: Collection[str] = ()) -> None:
    """Refuse a plugin that lacks a member of its contract, or has an attribute of another type."""
    found = check_methods(plugin, contract, optional) or check_attributes(plugin, contract)
    if found is None:
        return
    name = found.path.lstrip(".")
    if found.value is ABSENT:
        raise faulty(entry, f"lacks {name}", f"Define it: {found.expected}. See {_home(contract)}")
    raise faulty(entry, f"declares {name} as {described(found.value)}", f"Expected: {found.expected}")


def check_exporter(entry: PluginEntry, exporter: Any) -> None:
    """Refuse an exporter that offers schemes and implements no hook for them, or whose options collide with core's."""
    if (model := getattr(exporter, "options_model", None)) is not None:
        check_options(entry, model, "options_model", "export")
    schemes = getattr(exporter, "schemes", {})
    if schemes and "swift_quantize" not in {found.hook for found in implementations(entry, exporter)}:
        raise faulty(entry, f"offers {', '.join(schemes)}, and does not implement swift_quantize", "Implement it")


def check_options(entry: PluginEntry, model: Any, member: str, section: str | None) -> None:
    """Check that the options are a pydantic model that core can show, read and write.

    `section` is that of the configuration which is open to them, where there is one.
    """
    from pydantic import BaseModel

    from swift.config.fields import core_keys, model_fields

    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise faulty(entry, f"declares {model!r} as its {member}", "Give the plugin a pydantic model class")
    taken = sorted(model.model_fields.keys() & core_keys(section)) if section else []
    if taken:
        raise faulty(entry, f"has a field {taken[0]!r} in its {member}, which is core's own", "Rename it")
    if entry.distribution in PACKAGES:
        return  # a test checks that its defaults are valid, so that help builds no validators
    try:
        list(model_fields(model, section or entry.name))
        if not any(field.is_required() for field in model.model_fields.values()):
            model().model_dump(mode="json")
    except Exception as cause:
        failure = faulty(
            entry,
            f"has a {member} that cannot be used with its default values. {error_line(cause).rstrip('.')}",
            "Every default must be valid, and a JSON value",
        )
        failure.traceback_of = cause
        raise failure from cause


def check_objective_class(entry: PluginEntry, target: Any) -> None:
    """Refuse a class that cannot be made with its options later, or whose defaults select plugins."""
    if not (isinstance(target, type) and issubclass(target, Objective)):
        raise faulty(entry, f"names {described(target)}", f"Name a subclass of {_home(Objective)}")
    if missing := sorted(getattr(target, "__abstractmethods__", ())):
        raise faulty(entry, f"lacks {', '.join(missing)}", _ROW_WEIGHT if "row_weight" in missing else "Define it")
    if found := check_attributes(target, Objective, only=("defaults",)):
        raise faulty(entry, f"declares {found.path[1:]} as {described(found.value)}", f"Expected: {found.expected}")
    for key in target.defaults:
        section, _, name = key.partition(".")
        if section in ("backend", "objective") or not name or key in ("optim.name", "tuner.kind"):
            remedy = "Defaults are for keys of other sections, except those that name a plugin"
            raise faulty(entry, f"declares a default of {key!r}", remedy)


def check_objective(entry: PluginEntry, objective: Any) -> None:
    """Check the attributes of an objective that was created."""
    from swift.data.encodings import BY_NAME, Encoding

    check_contract(entry, objective, Objective)
    if isinstance(encoding := objective.encoding, Encoding):
        if found := check_attributes(encoding, Encoding):
            raise faulty(entry, f"has an encoding whose {found.path[1:]} is {described(found.value)}", found.expected)
    elif encoding not in list(BY_NAME):
        remedy = f"Name one of {', '.join(BY_NAME)}, or give a swift.data.encodings.Encoding"
        raise faulty(entry, f"has the encoding {encoding!r}", remedy)


def check_vocabulary(entry: PluginEntry, plugin: Any) -> None:
    """Refuse what is not derived from the class whose methods a vocabulary overrides."""
    if not isinstance(plugin, Vocabulary):
        raise faulty(entry, f"names {described(plugin)}", f"Name a subclass of {_home(Vocabulary)}")


def check_class(entry: PluginEntry, target: Any) -> None:
    """Refuse a target that is not a class."""
    if not isinstance(target, type):
        raise faulty(entry, f"names {described(target)}", "Name a class")


def implementations(entry: PluginEntry, plugin: Any) -> list[Implementation]:
    """Return the methods of a plugin that are marked with `hookimpl`."""
    manager = pluggy.PluginManager("swift")
    found = []
    for name in sorted({*dir(plugin)} - _OF_EVERY_OBJECT):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            if name.startswith("swift_") and inspect.isroutine(getattr(plugin, name)):
                raise faulty(entry, f"has a method {name} without @hookimpl, which is never called", "Decorate it")
            continue
        wrapper = bool(options.get("wrapper") or options.get("hookwrapper"))
        signature = _signature(entry, plugin, name)
        found.append(Implementation(options.get("specname") or name, name, wrapper, signature, options))
    return found


def _signature(entry: PluginEntry, plugin: Any, name: str) -> inspect.Signature:
    try:
        return inspect.signature(getattr(plugin, name))
    except (TypeError, ValueError):
        raise faulty(entry, f"has a method {name} without self", f"Write def {name}(self, ...)") from None


def _check_call(entry: PluginEntry, plugin: Any, found: Implementation) -> None:
    """Refuse hooks that are asynchronous, and wrappers that do not yield: pluggy calls them as they are."""
    method = inspect.unwrap(getattr(plugin, found.method))
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise faulty(entry, f"has an asynchronous {found.method}, which is never awaited", "Write def, not async def")
    if found.wrapper and not inspect.isgeneratorfunction(method):
        raise faulty(entry, f"has a wrapper {found.method} that does not yield", "A wrapper yields exactly once")


def _check_signature(entry: PluginEntry, found: Implementation) -> None:
    if found.hook not in _ARGUMENTS:
        raise faulty(
            entry, f"implements an unknown hook {found.hook!r}", f"Rename it.{did_you_mean(found.hook, _ARGUMENTS)}"
        )
    offered = _ARGUMENTS[found.hook]
    for argument, parameter in found.signature.parameters.items():
        if parameter.default is not parameter.empty:
            raise faulty(
                entry,
                f"gives {argument!r} of {found.method} a default value, which would hide the real one",
                f"Write {argument} without '='",
            )
        if argument not in offered or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise faulty(
                entry,
                f"has the parameter {str(parameter)!r} in {found.method}, but {found.hook} offers {', '.join(offered)}",
                f"Take some of these by name, without * and **.{did_you_mean(argument, offered)}",
            )


def _home(contract: type) -> str:
    home = "swift.hookspecs" if contract.__module__ == "swift.hookspecs" else "swift.contracts"
    return f"{home}.{contract.__name__}"


def faulty(entry: PluginEntry, problem: str, remedy: str) -> PluginError:
    """Return the error about a plugin that cannot be used as it is, and what its author, or its user, does about it."""
    stop = "" if remedy[-1] in ".?" else "."
    return PluginError(f"{entry} {problem}.", hint=f"{remedy}{stop} If the plugin is not yours: {upgrade(entry)}")
