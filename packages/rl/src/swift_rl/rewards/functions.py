"""Functions as rewards: TRL's signature, and the classes that ms-swift's plugins register."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from swift.contracts import RewardItem

_GIVEN = ("prompts", "completions", "completion_ids", "messages", "response_token_ids", "finish_reason")
"""What every function is offered besides the columns of the row."""


class CompletionOrMessages(str):
    """A completion, for functions that expect a text and for those that expect a list with one message.

    TRL hands over one or the other, as the data set is written: `completion[0]["content"]` is the whole text too.
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        """Return a part of the text; the first and the last are messages as well."""
        return _Message(self) if isinstance(key, int) and key in (0, -1) else super().__getitem__(key)


class _Message(str):
    """The first letter of a completion, and the message that holds it."""

    __slots__ = ("_whole",)
    _whole: str

    def __new__(cls, whole: str) -> _Message:
        letter = super().__new__(cls, str.__getitem__(whole, slice(0, 1)))
        letter._whole = str(whole)
        return letter

    def __getitem__(self, key: Any) -> Any:
        """Return the role or the content of the message."""
        return self.get(key) if key in ("role", "content") else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the role or the content of the message, as a mapping does."""
        return {"role": "assistant", "content": self._whole}.get(key, default)


class FunctionReward:
    """A function `f(prompts, completions, completion_ids, **columns)` as a `swift.contracts.Reward`."""

    isolation = "process"

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        called = function if inspect.isroutine(function) else function.__call__  # type: ignore[operator]  # an object
        self._asynchronous = inspect.iscoroutinefunction(called)
        self.batched = bool(getattr(function, "batched", self._asynchronous))
        try:
            self._parameters: Mapping[str, inspect.Parameter] | None = inspect.signature(called).parameters
        except (TypeError, ValueError):
            self._parameters = None

    @property
    def wants(self) -> tuple[str, ...]:
        """The columns without which the function cannot be called."""
        return tuple(
            name
            for name, parameter in (self._parameters or {}).items()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and name not in _GIVEN
        )

    def score(self, items: Sequence[RewardItem]) -> Any:
        """Return what the function returns."""
        arguments = self._accepted(_arguments(items))
        returned = self._function(**arguments)
        return asyncio.run(returned) if inspect.iscoroutine(returned) else returned

    def _accepted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        parameters = self._parameters
        if parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            return arguments
        return {name: value for name, value in arguments.items() if name in parameters}


def _arguments(items: Sequence[RewardItem]) -> dict[str, Any]:
    names = dict.fromkeys(name for item in items for name in item.columns)
    columns = {name: [item.columns.get(name) for item in items] for name in names}
    ids = [list(item.completion_ids) for item in items]
    conversations = [[*item.messages, {"role": "assistant", "content": item.completion}] for item in items]
    values = (
        [list(item.messages) for item in items],
        [CompletionOrMessages(item.completion) for item in items],
        ids,
        conversations,
        ids,
        [item.finish_reason for item in items],
    )
    return {**columns, **dict(zip(_GIVEN, values, strict=True))}


def made_orm(registered: Any, settings: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what a plugin registered as something to call: a class is made, with the run's options as `args`."""
    if not isinstance(registered, type):
        called: Callable[..., Any] = registered
        return called
    try:
        parameters = tuple(inspect.signature(registered).parameters)
    except (TypeError, ValueError):
        parameters = ()
    offered = {**settings, "args": SimpleNamespace(**settings)}
    made: Callable[..., Any] = registered(**{name: offered[name] for name in parameters if name in offered})
    return made
