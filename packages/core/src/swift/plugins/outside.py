"""The hooks of a backend that are called outside of runs, one backend at a time. All of them are optional."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

import pluggy

from swift.contracts import ProcessLayout
from swift.hookspecs import BackendHooks
from swift.plugins import return_values
from swift.plugins.blame import failing
from swift.plugins.check import implementations
from swift.plugins.guard import guarded
from swift.plugins.return_values import wrong
from swift.plugins.waiting import waiting_for

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from swift.config.sections import Config
    from swift.contracts import ThirdPartyCheckpoint, TrainedState
    from swift.plugins.entry import PluginEntry
    from swift.plugins.load import LoadedPlugin

P = ParamSpec("P")
T = TypeVar("T")
_Asking: TypeAlias = "Callable[Concatenate[LoadedPlugin, P], T]"

_PLAIN_METHODS = {
    "swift_describe_layout": "describe_plan",
    "swift_read_third_party": "third_party_checkpoint",
    "swift_write_third_party": "third_party_writer",
}
"""Hook → the method without `hookimpl` by which backends answered before it was one, with the same arguments."""


def _looking(hook: str) -> Callable[[_Asking[P, T]], _Asking[P, T]]:
    """Let what an answer raises when it is looked at be blamed on the backend."""

    def surrounded(ask: _Asking[P, T]) -> _Asking[P, T]:
        @wraps(ask)
        def look(backend: LoadedPlugin, /, *arguments: P.args, **named: P.kwargs) -> T:
            with failing(backend.entry, hook):
                return ask(backend, *arguments, **named)

        return look

    return surrounded


def implements(backend: LoadedPlugin, hook: str) -> bool:
    """Return whether a backend has one of these hooks."""
    hooks = {found.hook for found in implementations(backend.entry, backend.object)}
    return hook in hooks or callable(getattr(backend.object, _PLAIN_METHODS.get(hook, ""), None))


@_looking("swift_core_settings")
def core_settings(backend: LoadedPlugin, options: BaseModel) -> Mapping[str, tuple[Any, str]]:
    """Return the values of core's keys that a backend's options imply: (value, its location)."""
    hook = "swift_core_settings"
    came = _ask(backend, hook, options=options)
    if came is None and callable(method := getattr(options, "core_settings", None)):
        with failing(backend.entry, "core_settings"):
            came = method()
    if came is None:
        return {}
    if not isinstance(came, Mapping):
        raise wrong(backend.entry, hook, "a mapping from core's keys to (value, its location)", came)
    for key, pair in came.items():
        if not (isinstance(key, str) and isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], str)):
            raise wrong(backend.entry, hook, f"(value, its location) for the key {key!r}", pair)
    return came


@_looking("swift_describe_layout")
def describe_plan(backend: LoadedPlugin, config: Config, processes: int) -> list[str]:
    """Return which process holds what, in lines."""
    came = _ask(backend, "swift_describe_layout", config=config, processes=processes)
    if came is None:
        return []
    if isinstance(came, str) or not isinstance(came, Collection) or not all(isinstance(line, str) for line in came):
        raise wrong(backend.entry, "swift_describe_layout", "a list of lines", came)
    return list(came)


@_looking("swift_layout")
def layout_of(backend: LoadedPlugin, config: Config, processes: int) -> ProcessLayout:
    """Return how many processes each parallel dimension has."""
    came = _ask(backend, "swift_layout", config=config, processes=processes)
    if came is None:
        return ProcessLayout.of(config.parallel, processes)
    return return_values.layout(backend.entry, "swift_layout", came)


@_looking("swift_variants")
def variants(backend: LoadedPlugin) -> Mapping[str, Sequence[str]]:
    """Return the ways to set a backend up, as flags by name; one without a name and flags where it has no answer."""
    came = _ask(backend, "swift_variants")
    if came is None:
        return {"": ()}
    if not isinstance(came, Mapping) or not all(
        isinstance(name, str) and not isinstance(flags, str) and all(isinstance(flag, str) for flag in flags)
        for name, flags in came.items()
    ):
        raise wrong(backend.entry, "swift_variants", "a mapping from names to lists of flags", came)
    return came


@_looking("swift_presets")
def presets(backend: LoadedPlugin) -> Mapping[str, str]:
    """Files to begin from, by name."""
    came = _ask(backend, "swift_presets")
    if came is None:
        came = getattr(backend.object, "presets", None)
    if came is None:
        return {}
    if not isinstance(came, Mapping) or not all(isinstance(text, str) for pair in came.items() for text in pair):
        raise wrong(backend.entry, "swift_presets", "a mapping from names to texts", came)
    return came


@_looking("swift_read_third_party")
def read_third_party(backend: LoadedPlugin, folder: Path) -> ThirdPartyCheckpoint | None:
    """Return a checkpoint that the backend's engine saved; None where it knows nothing of what is there."""
    came = _ask(backend, "swift_read_third_party", folder=folder)
    if came is not None and not all(hasattr(came, member) for member in ("description", "step", "names", "read")):
        raise wrong(backend.entry, "swift_read_third_party", "a swift.contracts.ForeignCheckpoint, or None", came)
    return None if came is None else cast("ThirdPartyCheckpoint", _Opened(backend.entry, came))


def write_third_party(backend: LoadedPlugin, state: TrainedState, folder: Path) -> None:
    """Write a checkpoint for the backend's engine."""
    _ask(backend, "swift_write_third_party", state=state, folder=folder)


class _Opened:
    """A foreign checkpoint; what its methods raise is blamed on the backend that opened it."""

    def __init__(self, entry: PluginEntry, checkpoint: Any) -> None:
        self._entry = entry
        self._checkpoint = checkpoint

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["_checkpoint"], name)
        if not callable(value):
            return value

        @wraps(value)
        def call(*arguments: Any) -> Any:
            with failing(self._entry, f"{name} of the checkpoint that it read"):
                return value(*arguments)

        return call


def _ask(backend: LoadedPlugin, hook: str, **arguments: Any) -> Any:
    entry = backend.entry
    manager = pluggy.PluginManager("swift")
    manager.add_hookspecs(BackendHooks)
    manager.register(guarded(backend), name=str(entry))
    with waiting_for(entry, f"waiting for {hook} of"), failing(entry, hook):
        if getattr(manager.hook, hook).get_hookimpls():
            return getattr(manager.hook, hook)(**arguments)
        method = getattr(backend.object, _PLAIN_METHODS.get(hook, ""), None)
        return method(*arguments.values()) if callable(method) else None
