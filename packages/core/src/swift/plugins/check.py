"""Requirements of a plugin before a run may use it: its hook API, and the hooks that it implements.

pluggy ignores a method without `@hookimpl`, and never fills an argument that has a default value. Both would be
silent mistakes, so they are looked for here.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pluggy

from swift.contracts import HOOK_API, Capabilities, EngineLibrary, Need, Reads, SchemeFacts, Slot
from swift.errors import PluginError, did_you_mean
from swift.hookspecs import BackendHooks, EngineHooks, ExporterHooks, ObserverHooks
from swift.plugins.blame import upgrade, words_of
from swift.plugins.entry import CORE, normal_name

if TYPE_CHECKING:
    from swift.contracts import Objective
    from swift.plugins.entry import PluginEntry


def _hooks_of(spec: type) -> dict[str, tuple[str, ...]]:
    """Return the arguments that each hook offers, by name."""
    return {
        name: tuple(inspect.signature(function).parameters)[1:]
        for name, function in vars(spec).items()
        if name.startswith("swift_")
    }


_OWNERS = {"backend": BackendHooks, "exporter": ExporterHooks, "engine": EngineHooks, "observer": ObserverHooks}
_HOOKS = {owner: _hooks_of(spec) for owner, spec in _OWNERS.items()}
_ARGUMENTS = {hook: arguments for hooks in _HOOKS.values() for hook, arguments in hooks.items()}
_OF_EVERY_OBJECT = frozenset(dir(type("Any", (), {})))
"""Names that none of a plugin's methods has; to look at them would be most of the work."""
_ROW_WEIGHT = (
    "Define row_weight(self, samples), by which the sum of losses is divided: sum(sample.loss_weight for sample in "
    "samples) for a loss per token. For a loss per sample derive from swift.objectives.base.PerSampleObjective"
)
_OBJECTIVE_ATTRIBUTES = ("name", "needs", "encoding", "adapters_off", "baseline")


@dataclass(frozen=True)
class Implementation:
    """One method of a plugin that implements a hook."""

    hook: str
    method: str
    wrapper: bool
    signature: inspect.Signature
    options: Mapping[str, Any]
    """As `hookimpl` took them."""


def check_hook_api(entry: PluginEntry, plugin: Any, *, must_state: bool) -> tuple[int, int]:
    """Return the hook API that a plugin was written for; raise when this core does not speak it.

    One that need not state it, and does not, is taken to need the first of this major version.
    """
    written_for = getattr(plugin, "HOOK_API", None if must_state else (HOOK_API[0], 0))
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


def check_hooks(entry: PluginEntry, plugin: Any, spec: type, required: Collection[str]) -> None:
    """Refuse unknown hooks, arguments that do not exist, and required hooks that are not implemented exactly once."""
    found_hooks = implementations(entry, plugin)
    for implementation in found_hooks:
        _check_implementation(entry, implementation)
        _check_call(entry, plugin, implementation)
    counts = Counter(found.hook for found in found_hooks if not found.wrapper)
    own = _hooks_of(spec).keys() | _HOOKS["observer"].keys()
    for hook, count in counts.items():
        if hook not in own:
            owner = next(kind for kind, hooks in _HOOKS.items() if hook in hooks)
            raise _faulty(
                entry,
                f"implements {hook}, which only the selected {owner} may do",
                "Make it a wrapper: @hookimpl(wrapper=True)",
            )
        if count > 1:
            methods = ", ".join(found.method for found in found_hooks if found.hook == hook and not found.wrapper)
            raise _faulty(entry, f"implements {hook} {count} times ({methods})", "Keep one of them")
    missing = [hook for hook in required if hook not in counts]
    if missing:
        raise _faulty(entry, f"does not implement {', '.join(missing)}", f"Every {entry.kind} implements them once")
    if not found_hooks:
        raise _faulty(
            entry, f"names {_described(plugin)}, which implements no hook", "Name a class, an object or a module"
        )


def check_capabilities_declared(entry: PluginEntry, plugin: Any) -> None:
    """Refuse a backend whose `capabilities` are not what `swift.contracts.Capabilities` says."""
    capabilities = getattr(plugin, "capabilities", None)
    if not isinstance(capabilities, Capabilities):
        raise _faulty(
            entry, f"declares {capabilities!r} as its capabilities", "Give the plugin a swift.Capabilities attribute"
        )
    for field in fields(Capabilities):
        value = getattr(capabilities, field.name)
        if isinstance(field.default, bool):
            if not isinstance(value, bool):
                raise _faulty(entry, f"declares the capability {field.name} as {value!r}", "It is True or False")
        elif isinstance(field.default, int):
            if not isinstance(value, int) or value < 1:
                raise _faulty(entry, f"declares the capability {field.name} as {value!r}", "It is a number from 1 up")
        elif isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(e, str) for e in value):
            raise _faulty(entry, f"declares the capability {field.name} as {value!r}", "It is a frozenset of texts")


def check_exporter(entry: PluginEntry, exporter: Any) -> None:
    """Refuse an exporter whose `schemes` or `tasks` are not what `swift.hookspecs.ExporterHooks` says."""
    schemes = getattr(exporter, "schemes", {})
    if not isinstance(schemes, Mapping) or not all(isinstance(facts, SchemeFacts) for facts in schemes.values()):
        raise _faulty(
            entry, f"offers the schemes {schemes!r}", "They are names with a swift.contracts.SchemeFacts each"
        )
    unfit = [name for name in schemes if not isinstance(name, str) or not name or name != name.strip()]
    if unfit:
        raise _faulty(entry, f"offers a scheme under the name {unfit[0]!r}", "It is what is typed after --quant")
    if schemes and "swift_quantize" not in {found.hook for found in implementations(entry, exporter)}:
        raise _faulty(entry, f"offers {', '.join(schemes)}, and does not implement swift_quantize", "Implement it")
    _check_tasks(entry, exporter, "writes")


def check_engine(entry: PluginEntry, engine: Any) -> None:
    """Refuse an engine whose `library` or `tasks` are not what `swift.hookspecs.EngineHooks` says."""
    library = getattr(engine, "library", None)
    if library is not None and not isinstance(library, EngineLibrary):
        raise _faulty(entry, f"has the library {library!r}", "It is a swift.contracts.EngineLibrary, or None")
    _check_tasks(entry, engine, "serves")


def _check_tasks(entry: PluginEntry, plugin: Any, does: str) -> None:
    tasks = getattr(plugin, "tasks", None)
    if tasks is not None and (not isinstance(tasks, frozenset) or not all(isinstance(each, str) for each in tasks)):
        raise _faulty(entry, f"{does} the tasks {tasks!r}", "It is a frozenset of values of model.task, or None")


def check_options(entry: PluginEntry, model: Any, member: str, section: str) -> None:
    """Check that the options are a pydantic model that core can show, read and write."""
    from pydantic import BaseModel

    from swift.config.fields import core_keys, model_fields

    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise _faulty(entry, f"declares {model!r} as its {member}", "Give the plugin a pydantic model class")
    taken = sorted(model.model_fields.keys() & core_keys(section))
    if taken:
        raise _faulty(entry, f"has a field {taken[0]!r} in its {member}, which is core's own", "Rename it")
    if normal_name(entry.distribution) == CORE:
        return  # its tests say that its defaults are valid, so that help builds no validators
    try:
        list(model_fields(model, section))
        if not any(field.is_required() for field in model.model_fields.values()):
            model().model_dump(mode="json")
    except Exception as cause:
        failure = _faulty(
            entry,
            f"has a {member} that cannot be used with its default values. {words_of(cause).rstrip('.')}",
            "Every default must be valid, and something that JSON can hold",
        )
        failure.traceback_of = cause
        raise failure from cause


def check_members(entry: PluginEntry, target: Any, required: Collection[str]) -> None:
    """Refuse what lacks a member that every plugin of its kind has."""
    missing = [member for member in required if not hasattr(target, member)]
    if missing:
        raise _faulty(entry, f"lacks {', '.join(missing)}", f"See the members of {_contract(entry)}")


def check_objective_class(entry: PluginEntry, target: Any) -> None:
    """Refuse what cannot be made with its options later."""
    if not isinstance(target, type):
        raise _faulty(entry, "is not a class", f"See {_contract(entry)}")
    if missing := sorted(getattr(target, "__abstractmethods__", ())):
        raise _faulty(entry, f"lacks {', '.join(missing)}", _ROW_WEIGHT if "row_weight" in missing else "Define it")
    _check_defaults(entry, getattr(target, "defaults", {}))


def _check_defaults(entry: PluginEntry, defaults: Any) -> None:
    """Refuse defaults that are no pairs of value and reason, or that select plugins, which are loaded by then."""
    if not isinstance(defaults, Mapping):
        raise _faulty(entry, f"declares {defaults!r} as its defaults", "They are key → (value, reason)")
    for key, pair in defaults.items():
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], str)):
            raise _faulty(entry, f"declares {pair!r} as its default of {key!r}", "It is a pair of value and reason")
        section, _, name = key.partition(".") if isinstance(key, str) else ("", "", "")
        if section in ("backend", "objective") or not name or key in ("optim.name", "tuner.kind"):
            remedy = "Defaults are for keys of other sections, but for those that name a plugin"
            raise _faulty(entry, f"declares a default of {key!r}", remedy)


def check_optimizer(entry: PluginEntry, optimizer: Any) -> None:
    """Refuse an optimizer whose `reads` or `slots` are not what `swift.contracts.Optimizer` says."""
    if optimizer.reads not in frozenset(Reads):
        offered = ", ".join(f"Reads.{reads.name}" for reads in Reads)
        raise _faulty(entry, f"reads {optimizer.reads!r}", f"It is one of {offered}")
    slots = optimizer.slots
    if not isinstance(slots, tuple) or not all(isinstance(slot, Slot) for slot in slots):
        raise _faulty(entry, f"has the slots {slots!r}", "They are a tuple of swift.contracts.Slot")
    for slot in slots:
        if not slot.name.isidentifier() or slot.shape not in ("like", "scalar", "own", "matrix"):
            raise _faulty(entry, f"has the slot {slot!r}", "See swift.contracts.Slot")
    twice = [name for name, count in Counter(slot.name for slot in slots).items() if count > 1]
    if twice:
        raise _faulty(entry, f"has the slot {twice[0]!r} more than once", "Keep one of them")


def check_tuner(entry: PluginEntry, tuner: Any) -> None:
    """Refuse a tuner that does not say how it is stored, or at which rate it learns."""
    if not isinstance(tuner.adapter, bool):
        raise _faulty(entry, f"says {tuner.adapter!r} of whether it trains an adapter", "It is True or False")
    rate = tuner.learning_rate
    if isinstance(rate, bool) or not isinstance(rate, float | int) or not 0 < rate < math.inf:
        raise _faulty(entry, f"has the learning rate {rate!r}", "It is a finite number above 0")


def check_reward(entry: PluginEntry, reward: Any) -> None:
    """Refuse what is neither a class with `score` nor a function, or declares what `swift.contracts.Reward` has not."""
    if not isinstance(reward, type):
        if not callable(reward):
            raise _faulty(entry, "is neither a class nor a function", f"See {_contract(entry)}")
        return
    if not callable(getattr(reward, "score", None)):
        raise _faulty(entry, "lacks score", f"See the members of {_contract(entry)}")
    wants = getattr(reward, "wants", ())
    if not isinstance(wants, tuple) or not all(isinstance(column, str) for column in wants):
        raise _faulty(entry, f"wants {wants!r}", "It is a tuple of names of columns")
    if (isolation := getattr(reward, "isolation", "process")) not in ("process", "inline"):
        raise _faulty(entry, f"has the isolation {isolation!r}", "It is 'process' or 'inline'")
    if not isinstance(batched := getattr(reward, "batched", False), bool):
        raise _faulty(entry, f"says {batched!r} of whether it takes all answers at once", "It is True or False")
    if (model := getattr(reward, "options_model", None)) is not None:
        check_options(entry, model, "options_model", entry.name)


def check_environment(entry: PluginEntry, environment: Any) -> None:
    """Refuse what is no class with `reset` and `step`, or wants columns that are no names."""
    if not isinstance(environment, type):
        raise _faulty(entry, "is no class", f"See {_contract(entry)}")
    if missing := [name for name in ("reset", "step") if not callable(getattr(environment, name, None))]:
        raise _faulty(entry, f"lacks {' and '.join(missing)}", f"See the members of {_contract(entry)}")
    wants = getattr(environment, "wants", ())
    if not isinstance(wants, tuple) or not all(isinstance(column, str) for column in wants):
        raise _faulty(entry, f"wants {wants!r}", "It is a tuple of names of columns")
    if (model := getattr(environment, "options_model", None)) is not None:
        check_options(entry, model, "options_model", entry.name)


def check_command(entry: PluginEntry, command: Any) -> None:
    """Refuse a command that cannot be called or shown."""
    if not isinstance(command.summary, str) or not command.summary.strip():
        raise _faulty(entry, f"has the summary {command.summary!r}", "It is one line of text")
    if not callable(command.run):
        raise _faulty(entry, f"has {command.run!r} as its run", "It is a method")
    model = getattr(command, "options_model", None)
    if model is not None:
        check_options(entry, model, "options_model", entry.name)


def check_objective(entry: PluginEntry, objective: Objective) -> None:
    """Check the attributes of an objective that was created."""
    missing = [member for member in _OBJECTIVE_ATTRIBUTES if not hasattr(objective, member)]
    if missing:
        raise _faulty(entry, f"lacks {', '.join(missing)}", "See the members of swift.contracts.Objective")
    if not isinstance(objective.name, str):
        raise _faulty(entry, f"has the name {objective.name!r}", "It is a text")
    needs: object = objective.needs
    if not isinstance(needs, Set) or not all(need in frozenset(Need) for need in needs):
        offered = ", ".join(f"Need.{need.name}" for need in Need)
        raise _faulty(entry, f"needs {needs!r}", f"It is a frozenset of {offered}")
    if not all(hasattr(objective.baseline or objective, member) for member in ("needs", "adapters_off", "loss")):
        raise _faulty(entry, f"has the baseline {objective.baseline!r}", "It is an objective, or None")
    _check_first_pass(entry, objective)
    _check_encoding(entry, objective.encoding)


def _check_first_pass(entry: PluginEntry, objective: Any) -> None:
    """Check the optional members of objectives that compare rows or tokens."""
    first = getattr(objective, "first_pass", None)
    if first is not None:
        if not all(hasattr(first, member) for member in ("needs", "adapters_off", "loss")):
            raise _faulty(entry, f"has the first pass {first!r}", "It is an objective, or None")
        if not hasattr(objective, "from_first_pass"):
            raise _faulty(entry, "has a first pass and no from_first_pass", f"See {_contract(entry)}")
    candidates = getattr(objective, "candidates", ())
    if not isinstance(candidates, tuple) or not all(type(each) is int for each in candidates):
        raise _faulty(entry, f"has the candidates {candidates!r}", "They are a tuple of token ids")


def _check_encoding(entry: PluginEntry, encoding: object) -> None:
    """Refuse what is neither the name of an encoding nor an `Encoding` whose members have the right types."""
    from swift.data.encodings import BY_NAME, Encoding

    if not isinstance(encoding, Encoding):
        if encoding not in list(BY_NAME):
            remedy = f"Name one of {', '.join(BY_NAME)}, or give a swift.data.encodings.Encoding"
            raise _faulty(entry, f"has the encoding {encoding!r}", remedy)
        return
    if not isinstance(getattr(encoding, "name", None), str):
        raise _faulty(entry, "has an encoding without a name", "It is a text")
    for member in ("segment_names", "values", "token_values"):
        names: object = getattr(encoding, member)
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise _faulty(entry, f"has an encoding whose {member} are {names!r}", "It is a tuple of texts")
    for member in ("values", "token_values"):
        if not all(name.isidentifier() for name in getattr(encoding, member)):
            remedy = "Each is the name of a column: letters, digits and _"
            raise _faulty(entry, f"has an encoding whose {member} are {getattr(encoding, member)!r}", remedy)


def implementations(entry: PluginEntry, plugin: Any) -> list[Implementation]:
    """Return the methods of a plugin that are marked with `hookimpl`."""
    manager = pluggy.PluginManager("swift")
    found = []
    for name in sorted({*dir(plugin)} - _OF_EVERY_OBJECT):
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
                signature=_signature(entry, plugin, name),
                options=options,
            )
        )
    return found


def _signature(entry: PluginEntry, plugin: Any, name: str) -> inspect.Signature:
    try:
        return inspect.signature(getattr(plugin, name))
    except (TypeError, ValueError):
        raise _faulty(entry, f"has a method {name} without self", f"Write def {name}(self, ...)") from None


def _check_call(entry: PluginEntry, plugin: Any, found: Implementation) -> None:
    """Hooks are called as they stand: nobody awaits them, and only wrappers yield."""
    method = inspect.unwrap(getattr(plugin, found.method))
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise _faulty(entry, f"has an asynchronous {found.method}, which is never awaited", "Write def, not async def")
    if found.wrapper and not inspect.isgeneratorfunction(method):
        raise _faulty(entry, f"has a wrapper {found.method} that does not yield", "A wrapper yields exactly once")


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
        if parameter.kind is parameter.KEYWORD_ONLY and argument in offered:
            raise _faulty(entry, f"takes {argument!r} of {found.method} by keyword only", "Write it without '*'")
        if argument not in offered or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _faulty(
                entry,
                f"asks for {str(parameter)!r} in {found.method}, but {found.hook} offers {', '.join(offered)}",
                f"Rename it.{did_you_mean(argument, offered)}",
            )


def _contract(entry: PluginEntry) -> str:
    return f"swift.contracts.{entry.kind.capitalize()}"


def _described(plugin: Any) -> str:
    kind = type(plugin).__name__
    return f"the module {plugin.__name__}" if inspect.ismodule(plugin) else f"an object of the type {kind}"


def _faulty(entry: PluginEntry, problem: str, remedy: str) -> PluginError:
    stop = "" if remedy[-1] in ".?" else "."
    return PluginError(f"{entry} {problem}.", hint=f"{remedy}{stop} If the plugin is not yours: {upgrade(entry)}")
