"""A plugin's hooks as they are registered: what one raises says whose it is, and an observer that fails is left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from swift.contracts import Run
from swift.errors import SHOW_TRACEBACK, PluginError, SwiftError
from swift.hookspecs import hookimpl
from swift.plugins.blame import interrupts, keep_traceback, mark, traceback_text, words_of
from swift.plugins.check import Implementation, implementations
from swift.plugins.return_values import described

if TYPE_CHECKING:
    from pathlib import Path

    from swift.plugins.load import LoadedPlugin

Hook = Callable[..., Any]
Around = Generator[None, Any, Any]


class SeenRun(Run):
    """A `Run` as observers get it: always as it is now, and theirs to read, since core and backends rely on it."""

    @classmethod
    def of(cls, run: Run) -> SeenRun:
        """Return the same view of a run each time."""
        if run not in _SEEN:
            _SEEN[run] = seen = cls.__new__(cls)
            object.__setattr__(seen, "__dict__", vars(run))
        return _SEEN[run]

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse to set anything."""
        raise AttributeError(f"an observer cannot set Run.{name}, which is read by all others")

    def __delattr__(self, name: str) -> None:
        """Refuse to take anything away."""
        raise AttributeError(f"an observer cannot delete Run.{name}, which is read by all others")


_SEEN: WeakKeyDictionary[Run, SeenRun] = WeakKeyDictionary()


class Participation:
    """Whether an observer still takes part in its run: the first thing that it raises ends that.

    A `SwiftError` does not: with it an observer stops the run on purpose.
    """

    def __init__(self, plugin: LoadedPlugin) -> None:
        self.entry = plugin.entry
        self.ended = False
        self.known_to_all = False
        """Every process of the run knows that it ended."""
        self._failure: tuple[str, BaseException] | None = None

    def end(self, hook: str, cause: BaseException) -> None:
        """Leave the observer out from now on."""
        self.ended = True
        self._failure = (hook, cause)

    def report(self, folder: Path | None, rank: int) -> str | None:
        """Return a message for the user, once; None where nothing happened on this process."""
        if self._failure is None:
            return None
        (hook, cause), self._failure = self._failure, None
        told = PluginError(
            f"{self.entry} failed in {hook} and is switched off; the training continues without it. {words_of(cause)}"
        )
        told.traceback_of = cause
        if os.environ.get(SHOW_TRACEBACK):
            sys.stderr.write(traceback_text(cause))
        keep_traceback(told, folder, name=f"traceback-{self.entry.name}-{rank}")
        return told.message


def guarded(plugin: LoadedPlugin, observing: Participation | None = None) -> object:
    """Return a plugin to register instead of this one.

    The same hooks, under the same names and with the same arguments.
    """
    members: dict[str, Any] = {}
    for found in implementations(plugin.entry, plugin.object):
        method = getattr(plugin.object, found.method)
        if observing is not None:
            method = _reading(method)
        guard = _surrounded if found.wrapper else _called
        function = wraps(method)(guard(plugin, found, method, observing))
        members[found.method] = staticmethod(hookimpl(**found.options)(function))
    return type("Guarded", (), members)()


def _reading(method: Hook) -> Hook:
    """Return a hook of an observer, called with what it may read of the run."""

    @wraps(method)
    def read(*arguments: Any) -> Any:
        return method(*(SeenRun.of(each) if type(each) is Run else each for each in arguments))

    return read


def _called(plugin: LoadedPlugin, found: Implementation, method: Hook, observing: Participation | None) -> Hook:
    entry, hook = plugin.entry, found.hook

    def call(*arguments: Any) -> Any:
        if observing is not None and observing.ended:
            return None
        try:
            return method(*arguments)
        except BaseException as cause:
            if observing is not None and _is_failure(cause):
                observing.end(hook, cause)
                return None
            mark(cause, entry, hook)
            raise

    return call


def _surrounded(plugin: LoadedPlugin, found: Implementation, method: Hook, observing: Participation | None) -> Hook:
    """Yield a wrapper: what comes from within passes through it, and only what it raises itself is its own."""
    entry, hook = plugin.entry, found.hook

    def failed(cause: BaseException) -> None:
        """Leave an observer out; raise what any other plugin raised."""
        if observing is not None and _is_failure(cause):
            observing.end(hook, cause)
            return
        mark(cause, entry, hook)
        raise cause

    def around(*arguments: Any) -> Around:
        if observing is not None and observing.ended:
            return (yield)
        try:
            generator = method(*arguments)
            next(generator)
        except StopIteration:
            failed(RuntimeError("the wrapper does not yield"))
            return (yield)
        except BaseException as cause:
            failed(cause)
            return (yield)
        try:
            result = yield
        except BaseException as within:
            return _given_error(generator, within, failed)
        return _given_result(generator, result, failed, returns=not found.options.get("hookwrapper"))

    return around


def _given_result(generator: Around, result: Any, failed: Callable[[BaseException], None], *, returns: bool) -> Any:
    """Return the wrapper's result; `returns` is false for the old style, which has the result in a box."""
    try:
        generator.send(result)
    except StopIteration as end:
        if not returns or result is None or isinstance(end.value, type(result)):
            return end.value
        failed(TypeError(f"the wrapper returns {described(end.value)} where {described(result)} came"))
        return result
    except BaseException as cause:
        failed(cause)
        return result
    failed(RuntimeError("the wrapper yields twice"))
    return result


def _given_error(generator: Around, within: BaseException, failed: Callable[[BaseException], None]) -> Any:
    """Return the wrapper's result for an error from within, which it must not swallow without a result of its own."""
    try:
        generator.throw(within)
    except StopIteration as end:
        if end.value is not None:
            return end.value
    except BaseException as cause:
        if cause is not within:
            failed(cause)
    else:
        failed(RuntimeError("the wrapper yields twice"))
    raise within


def _is_failure(cause: BaseException) -> bool:
    return not issubclass(type(cause), SwiftError) and not interrupts(cause)
