"""A plugin's hooks as they are registered: errors name the plugin, and an observer that fails is left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from functools import wraps
from pathlib import Path
from typing import Any

import pluggy

from swift.errors import SHOW_TRACEBACK, PluginError, SwiftError
from swift.hookspecs import hookimpl
from swift.plugins.blame import error_line, interrupts, keep_traceback, mark, traceback_text
from swift.plugins.check import Implementation, implementations
from swift.plugins.load import LoadedPlugin
from swift.plugins.return_values import described

Hook = Callable[..., Any]
Around = Generator[None, Any, Any]


class Participation:
    """A plugin's part in a run: its errors are marked as its own, and those of an observer end that.

    A `SwiftError` does not: with it an observer stops the run on purpose.
    """

    def __init__(self, plugin: LoadedPlugin) -> None:
        self.entry = plugin.entry
        self.ended = False
        self.known_to_all = False
        """Every process of the run knows that it ended."""
        self._failure: tuple[str, BaseException] | None = None

    def take(self, hook: str, cause: BaseException) -> None:
        """Raise an error that a hook raised, or leave the observer out from now on."""
        if self.entry.kind == "observer" and not isinstance(cause, SwiftError) and not interrupts(cause):
            self.ended = True
            self._failure = (hook, cause)
            return
        mark(cause, self.entry, hook)
        raise cause

    def report(self, folder: Path | None, rank: int) -> str | None:
        """Return a message for the user, once; None where nothing happened on this process."""
        if self._failure is None:
            return None
        (hook, cause), self._failure = self._failure, None
        report = PluginError(
            f"{self.entry} failed in {hook} and is switched off; the training continues without it. {error_line(cause)}"
        )
        report.traceback_of = cause
        if os.environ.get(SHOW_TRACEBACK):
            sys.stderr.write(traceback_text(cause))
        keep_traceback(report, folder, name=f"traceback-{self.entry.name}-{rank}")
        return report.message


def hooks_of(plugin: LoadedPlugin, spec: type) -> Any:
    """Return the hooks of one plugin alone, to be called with arguments by name."""
    manager = pluggy.PluginManager("swift")
    manager.add_hookspecs(spec)
    manager.register(guarded(plugin, Participation(plugin)), name=str(plugin.entry))
    return manager.hook


def guarded(plugin: LoadedPlugin, participation: Participation) -> object:
    """Return an object to register instead of a plugin, with the same hooks, names and arguments."""
    members: dict[str, Any] = {}
    for found in implementations(plugin.entry, plugin.object):
        method = getattr(plugin.object, found.method)
        guard = _around if found.wrapper else _called
        members[found.method] = staticmethod(
            hookimpl(**found.options)(wraps(method)(guard(found, method, participation)))
        )
    return type("Guarded", (), members)()


def _called(found: Implementation, method: Hook, participation: Participation) -> Hook:
    def call(*arguments: Any) -> Any:
        if participation.ended:
            return None
        try:
            return method(*arguments)
        except BaseException as cause:
            participation.take(found.hook, cause)

    return call


def _around(found: Implementation, method: Hook, participation: Participation) -> Hook:
    """Return a wrapper through which passes what comes from within: only what it raises itself is its own error."""

    def around(*arguments: Any) -> Around:
        if participation.ended:
            return (yield)
        passing = _Passing(returns=not found.options.get("hookwrapper"))
        try:
            return (yield from passing.through(method(*arguments)))
        except BaseException as cause:
            if cause is not passing.error:
                participation.take(found.hook, cause)
        if passing.error is not None:
            raise passing.error
        return passing.result if passing.yielded else (yield)

    return around


class _Passing:
    """The result, or the error, that comes from within a wrapper; `returns` is false for wrappers of the old style."""

    def __init__(self, *, returns: bool) -> None:
        self.returns = returns
        self.yielded = False
        self.result: Any = None
        self.error: BaseException | None = None

    def through(self, wrapper: Around) -> Around:
        """Run a wrapper, which yields once, and return its result."""
        try:
            next(wrapper)
        except StopIteration:
            raise RuntimeError("the wrapper does not yield") from None
        try:
            self.result = yield
        except BaseException as within:
            self.error = within
        self.yielded = True
        try:
            wrapper.send(self.result) if self.error is None else wrapper.throw(self.error)
        except StopIteration as end:
            return self._checked(end.value)
        raise RuntimeError("the wrapper yields twice")

    def _checked(self, result: Any) -> Any:
        if self.error is not None and result is None:  # it must not hide the error without a result of its own
            raise self.error
        if self.returns and self.result is not None and not isinstance(result, type(self.result)):
            raise TypeError(f"the wrapper returns {described(result)} instead of {described(self.result)}")
        return result
