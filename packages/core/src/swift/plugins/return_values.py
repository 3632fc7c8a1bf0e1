"""Checks of the values that plugins return: a wrong type is reported where it comes from, not where it is used."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from swift.contracts import (
    ExportRequest,
    ForwardResult,
    ProcessLayout,
    Quantized,
    QuantizeRequest,
    StepResult,
    Topology,
    Traffic,
)
from swift.errors import PluginError
from swift.plugins.blame import blaming, class_name, failing, if_not_yours
from swift.plugins.entry import PluginEntry

P = ParamSpec("P")
T = TypeVar("T")

_END = object()


def looking(check: Callable[Concatenate[PluginEntry, str, P], T]) -> Callable[Concatenate[PluginEntry, str, P], T]:
    """Let what an answer raises when it is looked at be blamed on its plugin: it may be of any class."""

    @wraps(check)
    def look(entry: PluginEntry, function: str, /, *arguments: P.args, **named: P.kwargs) -> T:
        with failing(entry, function):
            return check(entry, function, *arguments, **named)

    return look


def wrong(
    entry: PluginEntry, function: str, expected: str, came: object = None, *, words: str | None = None
) -> PluginError:
    """Return the error about a wrong value that a plugin returned; `words` describe the value in other words."""
    return PluginError(
        f"{entry} answers {function} with {words or described(came)}; expected is {expected}.", hint=if_not_yours(entry)
    )


def described(value: object) -> str:
    """Return a value in a few words, whatever its author made of `repr`."""
    if value is None:
        return "nothing (None)"
    kind = class_name(value)
    if type(value) in (bool, int, float, str, bytes):  # and not of a class that is made of one
        text = repr(value)
        return f"the {kind} {text if len(text) <= 60 else f'{text[:60]}...'}"
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


@looking
def topology(entry: PluginEntry, hook: str, came: object) -> Topology:
    """Check that `swift_setup` returned this process's position."""
    if not isinstance(came, Topology):
        raise wrong(entry, hook, "a swift.Topology", came)
    for name in ("data_rank", "data_size"):
        if not _is_count(getattr(came, name)):
            raise wrong(entry, hook, f"a Topology whose {name} is a whole number", getattr(came, name))
    if not 0 <= came.data_rank < came.data_size:
        place = f"data_rank {came.data_rank} of data_size {came.data_size}"
        raise wrong(entry, hook, "a Topology with 0 <= data_rank < data_size", words=place)
    if not isinstance(came.device, str):
        raise wrong(entry, hook, "a Topology whose device is a text", came.device)
    return came


@looking
def train_state(entry: PluginEntry, hook: str, came: object) -> Any:
    """Check that `swift_shard` returned a state with a step number."""
    if not _is_count(getattr(came, "step", None)):
        raise wrong(entry, hook, "a state with a whole number `step`", came)
    return came


@looking
def step_result(entry: PluginEntry, hook: str, came: object) -> StepResult:
    """Check that `swift_train_step` returned plain numbers."""
    if not isinstance(came, StepResult):
        raise wrong(entry, hook, "a swift.StepResult", came)
    for name in ("loss", "grad_norm", "learning_rate"):
        if not _is_number(getattr(came, name)):
            raise wrong(entry, hook, f"a StepResult whose {name} is a float", getattr(came, name))
    for name, value in _mapping(entry, hook, "StepResult", came.metrics).items():
        if not (isinstance(name, str) and _is_number(value)):
            raise wrong(entry, hook, f"a float for the metric {name!r}", value)
    return came


def _are_mappings(values: object) -> bool:
    return isinstance(values, Sequence) and all(isinstance(each, Mapping) for each in values)


@looking
def forward_result(entry: PluginEntry, hook: str, came: object) -> ForwardResult:
    """Check that `swift_forward` returned plain numbers, and a tensor of segments."""
    if not isinstance(came, ForwardResult):
        raise wrong(entry, hook, "a swift.ForwardResult", came)
    for name in ("loss", "weight"):
        if not _is_number(getattr(came, name)):
            raise wrong(entry, hook, f"a ForwardResult whose {name} is a float", getattr(came, name))
    for name, pair in _mapping(entry, hook, "ForwardResult", came.metrics).items():
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(map(_is_number, pair))):
            raise wrong(entry, hook, f"a pair (sum, weight) of floats for the metric {name!r}", pair)
    if came.segments is not None and not is_tensor(came.segments):
        raise wrong(entry, hook, "a ForwardResult whose segments are a tensor", came.segments)
    if came.tokens is not None and not _are_mappings(came.tokens):
        raise wrong(entry, hook, "a ForwardResult whose tokens are a sequence of mappings", came.tokens)
    return came


@looking
def weights(entry: PluginEntry, hook: str, came: object) -> Iterator[tuple[str, Any]]:
    """Check the stream that `swift_iter_weights` returned.

    Its errors are the plugin's too. One tensor is held at a time.
    """
    if isinstance(came, str | bytes) or not isinstance(came, Iterable):
        raise wrong(entry, hook, "an iterator over pairs (name, tensor)", came)
    return _weights(entry, hook, iter(came))


def _weights(entry: PluginEntry, hook: str, stream: Iterator[Any]) -> Iterator[tuple[str, Any]]:
    try:
        while True:
            with blaming(entry, hook):
                item = next(stream, _END)
            if item is _END:
                return
            if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and is_tensor(item[1])):
                raise wrong(entry, hook, "pairs (name, tensor)", item)
            yield item
            del item  # before the next one is made
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()


@looking
def exported_folder(entry: PluginEntry, hook: str, came: object, request: ExportRequest) -> Path:
    """Check that `swift_export` returned the folder that it was given."""
    if not isinstance(came, str | os.PathLike):
        raise wrong(entry, hook, "the folder that it wrote", came)
    if Path(came).absolute() != request.destination.absolute():
        raise wrong(entry, hook, f"the folder that it was given ({request.destination})", os.fspath(came))
    return Path(came)


@looking
def quantized(entry: PluginEntry, hook: str, came: object, request: QuantizeRequest) -> Quantized:
    """Check that `swift_quantize` returned log-probabilities of the quantised weights for each prompt."""
    if not isinstance(came, Quantized):
        raise wrong(entry, hook, "a swift.contracts.Quantized", came)
    logps: object = came.logps
    prompts = len(request.prompts)
    if not (isinstance(logps, Sequence) and len(logps) == prompts and all(isinstance(e, Sequence) for e in logps)):
        raise wrong(entry, hook, f"log-probabilities of {prompts} prompts", logps)
    if not all(_is_number(value) for each in logps for value in each):
        raise wrong(entry, hook, "log-probabilities that are floats", logps)
    if not is_finite(came.tolerance):
        raise wrong(entry, hook, "a finite number for its tolerance", came.tolerance)
    return came


@looking
def size(entry: PluginEntry, function: str, came: Any) -> float:
    """Check that a count of bytes or values is one."""
    number = float(came)
    if not math.isfinite(number) or number < 0:
        raise wrong(entry, function, "a finite number that is not negative", came)
    return number


@looking
def layout(entry: PluginEntry, hook: str, came: object) -> ProcessLayout:
    """Check that `swift_layout` returned sizes of dimensions."""
    if not isinstance(came, ProcessLayout):
        raise wrong(entry, hook, "a swift.contracts.ProcessLayout", came)
    return came


@looking
def memory(entry: PluginEntry, hook: str, came: object) -> Mapping[str, float] | None:
    """Check that `swift_estimate_memory` returned bytes by name, or nothing."""
    if came is None:
        return None
    if not isinstance(came, Mapping) or not all(isinstance(name, str) for name in came):
        raise wrong(entry, hook, "a mapping of names to bytes, or None", came)
    for name, count in came.items():
        if not is_finite(count) or count < 0:
            raise wrong(entry, hook, f"a finite number of bytes for {name!r}", count)
    return came


@looking
def traffic(entry: PluginEntry, hook: str, came: object) -> Sequence[Traffic]:
    """Check that `swift_estimate_traffic` returned messages, or nothing."""
    if came is None:
        return ()
    if not isinstance(came, Sequence) or not all(isinstance(each, Traffic) for each in came):
        raise wrong(entry, hook, "a sequence of swift.contracts.Traffic, or None", came)
    return came


@looking
def activations(entry: PluginEntry, hook: str, came: Any) -> float | None:
    """Check that `swift_estimate_activations` returned a number of bytes, or nothing."""
    if came is not None and not (is_finite(came) and came >= 0):
        raise wrong(entry, hook, "a finite number of bytes, or None", came)
    return cast("float | None", came)


def is_tensor(value: object) -> bool:
    """Return whether this is a tensor; where torch was never imported, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _mapping(entry: PluginEntry, hook: str, owner: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise wrong(entry, hook, f"a {owner} whose metrics are a mapping", value)
    return value


def is_finite(value: object) -> bool:
    """Return whether this is a number that can be counted with."""
    return _is_number(value) and math.isfinite(cast(float, value))


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
