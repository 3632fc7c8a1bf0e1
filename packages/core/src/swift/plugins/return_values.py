"""Values of plugins, compared with the types that `swift.hookspecs` and `swift.contracts` declare.

Annotations are the only declaration: what a plugin returns, or declares of itself, is checked against them.
"""

from __future__ import annotations

import collections.abc
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from swift import contracts
from swift.errors import PluginError
from swift.plugins.blame import blaming, failing, if_not_yours
from swift.plugins.entry import PluginEntry

_END = object()
ABSENT: Any = object()
_PLAIN: dict[Any, tuple[type, ...]] = {int: (int,), float: (float, int), str: (str,), bool: (bool,)}


class Mismatch(NamedTuple):
    """A value of the wrong type."""

    path: str
    """Where it is in the whole value: `.metrics['speed']`; empty for the whole."""
    value: object
    expected: str

    def within(self, whole: object) -> str:
        """Describe the whole value by what is wrong with it."""
        if not self.path:
            return described(whole)
        if self.value is ABSENT:
            return f"{described(whole)} without {self.path.lstrip('.')}"
        return f"{described(whole)} whose {self.path.lstrip('.')} is {described(self.value)}"


def returned(entry: PluginEntry, function: str, value: Any, expected: Any) -> Any:
    """Return what a plugin's function returned; raise `PluginError` where it is not of the `expected` type."""
    with failing(entry, function):
        if (found := mismatch(value, expected)) is None:
            return value
        raise wrong(entry, function, found.expected, shown=found.within(value))


def called(
    entry: PluginEntry, function: str, call: Callable[..., Any], expected: Any, *arguments: Any, **named: Any
) -> Any:
    """Return what a plugin's function returns; its errors, and values of another type, are raised as `PluginError`."""
    with failing(entry, function):
        return returned(entry, function, call(*arguments, **named), expected)


def wrong(
    entry: PluginEntry, function: str, expected: str, came: object = None, *, shown: str | None = None
) -> PluginError:
    """Return the error about a wrong value that a plugin returned; `shown` describes the value."""
    return PluginError(
        f"{entry} returned {shown or described(came)} from {function}. Expected: {expected}.", hint=if_not_yours(entry)
    )


def described(value: object) -> str:
    """Return a value in a few words, whatever its author made of `repr`."""
    if value is None:
        return "nothing (None)"
    kind = type(value).__name__
    if type(value) in (bool, int, float, str, bytes):  # and not of a class derived from one
        text = repr(value)
        return f"the {kind} {text if len(text) <= 60 else f'{text[:60]}...'}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if is_tensor(value):
        return f"a tensor of the shape {tuple(value.shape)}"  # type: ignore[attr-defined]  # it is a tensor
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def mismatch(value: object, expected: Any, path: str = "") -> Mismatch | None:
    """Return the first part of a value that is not of the expected type; None where all of it is.

    Elements of iterators are not looked at.
    """
    if expected in _PLAIN:
        fits = isinstance(value, _PLAIN[expected]) and (expected is bool or not isinstance(value, bool))
        return None if fits else Mismatch(path, value, expected.__name__)
    origin = typing.get_origin(expected)
    if origin is None:
        return _of_class(value, expected, path)
    found = _of_generic(value, origin, typing.get_args(expected), path)
    return found._replace(expected=_shown(expected)) if found is not None and found.path == path else found


def _of_class(value: object, expected: Any, path: str) -> Mismatch | None:
    if expected is None or expected is type(None):
        return None if value is None else Mismatch(path, value, "None")
    if not isinstance(expected, type) or expected in (object, Any):
        return None
    if getattr(expected, "_is_protocol", False):
        return check_methods(value, expected, path=path) or check_attributes(value, expected, path)
    if expected is Tensor:
        return None if is_tensor(value) else Mismatch(path, value, "a tensor")
    if issubclass(expected, Enum):
        return None if value in list(expected) else Mismatch(path, value, expected.__name__)
    if not isinstance(value, expected):
        return Mismatch(path, value, expected.__name__)
    if not is_dataclass(expected) or not expected.__module__.startswith(contracts.__name__):
        return None
    return check_attributes(value, expected, path)


def check_methods(value: object, contract: type, optional: Collection[str] = (), *, path: str = "") -> Mismatch | None:
    """Return the first method of a contract that a value lacks."""
    lacking = (
        name for name in methods_of(contract) if name not in optional and not callable(getattr(value, name, None))
    )
    return next((Mismatch(f"{path}.{name}", ABSENT, f"a method of {contract.__name__}") for name in lacking), None)


def methods_of(contract: type) -> list[str]:
    """Return the public methods that a contract declares, hooks apart."""
    return [
        name
        for name, member in vars(contract).items()
        if inspect.isfunction(member) and not name.startswith(("_", "swift_"))
    ]


def check_attributes(
    value: object, contract: type, path: str = "", *, only: Collection[str] | None = None
) -> Mismatch | None:
    """Return the first attribute of a contract that a value lacks, or has with another type than declared."""
    for name, kind in declared(contract).items():
        if only is not None and name not in only:
            continue
        part = getattr(value, name, ABSENT)
        if type(part) is kind and kind in _PLAIN:
            continue
        if part is ABSENT:
            if hasattr(contract, name):
                continue
            return Mismatch(f"{path}.{name}", ABSENT, f"an attribute of the type {_shown(kind)}")
        if found := mismatch(part, kind, f"{path}.{name}"):
            return found
    return None


def _of_generic(value: Any, origin: Any, arguments: tuple[Any, ...], path: str) -> Mismatch | None:
    whole = Mismatch(path, value, "")
    if origin in (typing.Union, types.UnionType):
        tried = [mismatch(value, each, path) for each in arguments]
        if None in tried:
            return None
        return next((each for each in tried if each is not None and each.path != path), whole)
    if origin is typing.Literal:
        return None if value in arguments else whole
    if origin is type:
        return None if isinstance(value, type) and issubclass(value, arguments[0]) else whole
    if not isinstance(value, _loose(origin)) or isinstance(value, str | bytes):
        return whole
    if origin is tuple and arguments[-1] is not Ellipsis and len(value) != len(arguments):
        return whole
    parts = (mismatch(each, kind, at) for each, kind, at in _elements(value, origin, arguments, path))
    return next((found for found in parts if found is not None), None)


def _elements(value: Any, origin: Any, arguments: tuple[Any, ...], path: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield the elements of a container, each with its type and path."""
    if issubclass(origin, Mapping):
        for key, each in value.items():
            yield key, arguments[0], f"{path} key"
            yield each, arguments[1], f"{path}[{key!r}]"
    elif issubclass(origin, Collection):
        fixed = origin is tuple and arguments[-1] is not Ellipsis
        if not fixed and arguments[0] in _PLAIN and set(map(type, value)) <= {arguments[0]}:
            return  # thousands of numbers, which need not be looked at one by one
        for at, each in enumerate(value):
            yield each, arguments[at if fixed else 0], f"{path}[{at}]"


def _loose(origin: type) -> Any:
    """Return the classes that are as good as one: a list serves as a tuple, any set as a frozenset."""
    loose: dict[type, Any] = {
        tuple: (tuple, list),
        list: collections.abc.Sequence,
        dict: Mapping,
        frozenset: collections.abc.Set,
        collections.abc.Iterator: Iterable,
    }
    return loose.get(origin, origin)


def _shown(expected: Any) -> str:
    """Return a type as its author wrote it, without the modules."""
    if expected is type(None):
        return "None"
    if (arguments := typing.get_args(expected)) == ():
        return "tensor" if expected is Tensor else getattr(expected, "__name__", str(expected))
    if typing.get_origin(expected) in (typing.Union, types.UnionType):
        return " | ".join(map(_shown, arguments))
    if typing.get_origin(expected) is typing.Literal:
        return " or ".join(map(repr, arguments))
    inner = ", ".join("..." if each is Ellipsis else _shown(each) for each in arguments)
    return f"{typing.get_origin(expected).__name__}[{inner}]"


class Tensor:
    """`torch.Tensor` in annotations, which are read where torch was not imported."""


@cache
def declared(owner: type) -> dict[str, Any]:
    """Return the attributes that a class declares, its bases' included: name → type."""
    found = {
        name: _resolved(annotation, each.__module__)
        for each in reversed(owner.__mro__)
        for name, annotation in vars(each).get("__annotations__", {}).items()
    }
    return {field.name: found[field.name] for field in fields(owner)} if is_dataclass(owner) else found


@cache
def returns(owner: type, method: str) -> Any:
    """Return the declared type of what a method returns."""
    function = getattr(owner, method)
    return _resolved(function.__annotations__.get("return", "Any"), inspect.unwrap(function).__module__)


def _resolved(annotation: Any, module: str) -> Any:
    """Return the type that an annotation names; `Any` for types that are imported only for type checking."""
    if not isinstance(annotation, str):
        return annotation
    names = {
        **vars(typing), **vars(collections.abc), **vars(contracts), "Path": Path, "BaseModel": BaseModel,
        "torch": types.SimpleNamespace(Tensor=Tensor), "np": types.SimpleNamespace(ndarray=Any),
    }  # fmt: skip
    try:
        found = eval(annotation, {**vars(sys.modules[module]), **names})
        return typing.get_args(found)[0] if typing.get_origin(found) is typing.ClassVar else found
    except (NameError, AttributeError):
        return Any


def streamed(entry: PluginEntry, hook: str, stream: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the pairs of a weight stream. Its errors are the plugin's too, and one tensor is held at a time."""
    with closing(items_of(entry, hook, stream, blaming)) as items:
        for item in items:
            if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and is_tensor(item[1])):
                raise wrong(entry, hook, "pairs (name, tensor)", item)
            yield item
            del item  # before the next one is made


def items_of(
    entry: PluginEntry, function: str, stream: Iterable[Any], guard: Callable[..., AbstractContextManager[None]]
) -> Generator[Any]:
    """Yield what a plugin yields, with `blaming` or `failing` for its errors; close it in the end."""
    iterator = iter(stream)
    try:
        while True:
            with guard(entry, function):
                item = next(iterator, _END)
            if item is _END:
                return
            yield item
            del item  # before the next one is made
    finally:
        if callable(close := getattr(iterator, "close", None)):
            close()


def size(entry: PluginEntry, function: str, call: Callable[..., Any], *arguments: Any) -> float:
    """Return the count of bytes or values that a plugin's function returns."""
    with failing(entry, function):
        return check_size(entry, function, call(*arguments))


def check_size(entry: PluginEntry, function: str, came: Any) -> float:
    """Check that a count of bytes or values is one."""
    with failing(entry, function):
        number = float(came) if hasattr(type(came), "__float__") else math.nan
        if not is_finite(number) or number < 0:
            raise wrong(entry, function, "a finite number that is not negative", came)
        return number


def is_tensor(value: object) -> bool:
    """Return whether this is a tensor; where torch was never imported, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_finite(value: object) -> bool:
    """Return whether this is a number that can be calculated with."""
    return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)


class Checked:
    """A plugin's object behind its contract: its errors name the plugin, and its return values have declared types."""

    kept: frozenset[str] = frozenset()
    """Methods whose errors keep their type, which the run handles: out of memory, a full disk, the loss of a peer."""

    def __init__(self, entry: PluginEntry, inner: Any, contract: type, *, of: str = "") -> None:
        self._entry = entry
        self._inner = inner
        self._contract = contract
        self._of = of

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._inner, name)
        if not inspect.isroutine(value):
            return value
        return lambda *arguments, **named: self._call(name, value, *arguments, **named)

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        title = f"{name}{self._of}"
        with (blaming if name in self.kept else failing)(self._entry, title):
            expected = returns(self._contract, name) if hasattr(self._contract, name) else Any
            return returned(self._entry, title, function(*arguments, **named), expected)
