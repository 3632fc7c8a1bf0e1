"""Checks of the values that plugins return: a wrong type is reported where it comes from, not where it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swift.contracts import ForwardResult, Quantized, StepResult, Topology
from swift.errors import PluginError
from swift.plugins.blame import blaming, if_not_yours
from swift.plugins.entry import PluginEntry

_END = object()


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
    kind = type(value).__name__
    if isinstance(value, bool | int | float | str | bytes):
        text = repr(value)
        return f"the {kind} {text if len(text) <= 60 else f'{text[:60]}...'}"
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


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


def train_state(entry: PluginEntry, hook: str, came: object) -> Any:
    """Check that `swift_shard` returned a state with a step number."""
    if not _is_count(getattr(came, "step", None)):
        raise wrong(entry, hook, "a state with a whole number `step`", came)
    return came


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


def exported_folder(entry: PluginEntry, hook: str, came: object, destination: Path) -> Path:
    """Check that `swift_export` returned the folder that it was given."""
    if not isinstance(came, str | os.PathLike):
        raise wrong(entry, hook, "the folder that it wrote", came)
    if Path(came).absolute() != destination.absolute():
        raise wrong(entry, hook, f"the folder that it was given ({destination})", os.fspath(came))
    return Path(came)


def quantized(entry: PluginEntry, hook: str, came: object, prompts: int) -> Quantized:
    """Check that `swift_quantize` returned log-probabilities of the quantised weights for each prompt."""
    if not isinstance(came, Quantized):
        raise wrong(entry, hook, "a swift.contracts.Quantized", came)
    logps: object = came.logps
    if not (isinstance(logps, Sequence) and len(logps) == prompts and all(isinstance(e, Sequence) for e in logps)):
        raise wrong(entry, hook, f"log-probabilities of {prompts} prompts", logps)
    if not _is_number(came.tolerance):
        raise wrong(entry, hook, "a float for its tolerance", came.tolerance)
    return came


def is_tensor(value: object) -> bool:
    """Return whether this is a tensor; where torch was never imported, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _mapping(entry: PluginEntry, hook: str, owner: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise wrong(entry, hook, f"a {owner} whose metrics are a mapping", value)
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
