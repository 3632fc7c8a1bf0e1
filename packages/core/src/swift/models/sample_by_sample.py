"""Modules that mix samples which lie end to end in one row, called for each sample as if it were alone.

Layers that carry state (linear attention, state spaces, convolutions), and code that counts positions from a row's
beginning, are exact when they see one sample at a time; everything between them stays packed. Which modules these are
is not read from a table: on a small copy of the architecture, a module is one of them whose input agrees with that of
each sample alone, and whose output does not. Which dimensions count tokens is seen in the same calls, at several
lengths.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from functools import partial, wraps
from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from swift.errors import ModelError
from swift.models.attention import Packing

Kind = tuple[str, str]
"""The path of a module below the decoder without its numbers, and its class: alike in a model and its small copy."""
Dimensions = Mapping[str, tuple[int, ...]]
"""Of each tensor in the arguments or the output of a module, by its path there: which dimensions count tokens."""
_OF_KERNELS = frozenset({"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"})
"""What FlashAttention is told about a whole row; without it, it takes each row of a batch for one sample."""


class PackedRow(AbstractContextManager["PackedRow"]):
    """The samples that lie end to end in the row that is computed inside; without lengths, each row is a sample."""

    def __init__(self, lengths: Sequence[int] = (), ratio: float = 1.5) -> None:
        self.lengths = lengths
        self.ratio = ratio
        """How much longer than a sample the batch may be in which it is computed."""
        self.starts = [0, *accumulate(lengths)][:-1]
        self._outer: list[Token[PackedRow | None]] = []
        self._indexes: dict[torch.device, tuple[list[torch.Tensor], torch.Tensor]] = {}

    def __enter__(self) -> PackedRow:
        self._outer.append(_ROW.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _ROW.reset(self._outer.pop())

    def batches(self, device: torch.device) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return which tokens make batches of similar lengths, and where each token of the row lies in all of them.

        Each batch is [samples, longest]; the last token of a shorter sample is repeated.
        """
        if device not in self._indexes:
            lengths = torch.tensor(self.lengths)
            order = lengths.argsort(descending=True, stable=True).tolist()
            batches: list[list[int]] = []
            for number in order:
                if batches and self.lengths[batches[-1][0]] <= self.ratio * self.lengths[number]:
                    batches[-1].append(number)
                else:
                    batches.append([number])
            indexes, first = [], []
            for batch in batches:
                longest, starts = torch.arange(self.lengths[batch[0]]), torch.tensor([self.starts[n] for n in batch])
                last = lengths[batch][:, None] - 1
                indexes.append(starts[:, None] + longest.minimum(last))
                first.append((longest <= last).flatten())
            flat, computed = torch.cat([each.flatten() for each in indexes]), torch.cat(first)
            back = torch.empty(sum(self.lengths), dtype=torch.long)
            back[flat[computed]] = torch.arange(len(flat))[computed]
            self._indexes[device] = [each.to(device) for each in indexes], back.to(device)
        return self._indexes[device]


_ROW: ContextVar[PackedRow | None] = ContextVar("row", default=None)


def checkpoint_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of a checkpointed forward pass and of its recomputation: `torch.utils.checkpoint` calls it.

    A block is computed again in the backward pass, maybe after the forward pass of another micro-batch.
    """
    return nullcontext(), _ROW.get() or nullcontext()


CHECKPOINTING = {"use_reentrant": False, "context_fn": checkpoint_contexts}
"""Arguments of `gradient_checkpointing_enable` with which a block is computed again unchanged."""


@dataclass(frozen=True)
class Signature:
    """Where a module's arguments and output have tokens."""

    given: Dimensions
    returned: Dimensions
    batched: bool
    """Whether samples may be padded on the right and computed together."""


def call_by_sample(decoder: nn.Module, signatures: Mapping[Kind, Signature]) -> list[nn.Module]:
    """Let modules of these kinds see one sample at a time, or a batch of them, and return the modules.

    What surrounds a module's `forward`, such as hooks, sees the whole row, once.
    """
    modules = []
    for name, module in decoder.named_modules():
        kind = kind_of(name, module)
        if kind in signatures:
            modules.append(module)
            if not hasattr(module.forward, "of_rows"):
                # Not compiled: no row is like another.
                forward: Any = torch.compiler.disable(  # type: ignore[no-untyped-call]  # torch's
                    _by_sample(module.forward, kind, signatures)
                )
                forward.of_rows = True
                module.forward = forward
    return modules


def kind_of(name: str, module: nn.Module) -> Kind:
    """Return by what a module is known in a model and in its small copy."""
    return re.sub(r"\d+", "#", name), type(module).__name__


def is_layer(kind: Kind) -> bool:
    """Return whether modules of a kind are members of a list."""
    return kind[0].rpartition(".")[2] == "#"


def by_position(forward: Callable[..., Any], positional: Any, named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with those in front that can be passed by position, however the caller has passed them."""
    try:
        bound = signature(forward).bind(*positional, **named)
    except (TypeError, ValueError):  # a decorator takes or adds others
        return tuple(positional), dict(named)
    return bound.args, bound.kwargs


def _by_sample(forward: Callable[..., Any], kind: Kind, signatures: Mapping[Kind, Signature]) -> Callable[..., Any]:
    @wraps(forward)
    def by_sample(*positional: Any, **named: Any) -> Any:
        row = _ROW.get()
        if row is None and torch._C._current_graph_task_id() != -1:
            raise ModelError(
                f"{kind[1]} is computed again in the backward pass, where the samples of a packed row are unknown.",
                hint="Type --gradient_checkpointing false",
            )
        if row is None or len(row.lengths) < 2:
            return forward(*positional, **named)
        with PackedRow():
            return _Calls(forward, kind[1], signatures[kind], row, positional, named).of(forward)

    return by_sample


class _Calls:
    """The calls that one call with a row of samples is made into."""

    def __init__(
        self,
        forward: Callable[..., Any],
        name: str,
        found: Signature,
        row: PackedRow,
        positional: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        named = {key: None if key in _OF_KERNELS else value for key, value in named.items()}
        leaves, self.structure = tree_flatten_with_path((positional, named))
        self.values = [value for _, value in leaves]
        paths = [_path_of_argument(forward, path) for path, _ in leaves]
        self.dimensions = [found.given.get(path) for path in paths]
        self.signature, self.row = found, row
        tokens = sum(row.lengths)
        for path, value, dimensions in zip(paths, self.values, self.dimensions, strict=True):
            if isinstance(value, torch.Tensor) and not _has_tokens(value, dimensions, tokens):
                raise ModelError(
                    f"{name} is called with {path} of shape {[*value.shape]}, in which swift cannot separate packed "
                    "samples.",
                    hint="Turn it off: --data.packing false --data.padding_free false",
                )

    def of(self, forward: Callable[..., Any]) -> Any:
        """Call `forward` for each sample or batch of samples, and put the outputs together."""
        if not self.signature.batched:
            samples = zip(self.row.starts, self.row.lengths, strict=True)
            outputs = [self._called(forward, length, partial(_cut, start, length)) for start, length in samples]
            return self._together(outputs, _joined)
        device = next(value.device for value in self.values if isinstance(value, torch.Tensor))
        batches, back = self.row.batches(device)
        outputs = [self._called(forward, index.shape[1], partial(_chosen, index)) for index in batches]
        return self._together(outputs, partial(_put_back, back))

    def _called(
        self, forward: Callable[..., Any], length: int, cut: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
    ) -> Any:
        own = [
            cut(value, dimensions) if dimensions else Packing((length,)) if isinstance(value, Packing) else value
            for value, dimensions in zip(self.values, self.dimensions, strict=True)
        ]
        positional, named = tree_unflatten(own, self.structure)
        return tree_flatten_with_path(forward(*positional, **named))

    def _together(
        self, outputs: Sequence[Any], join: Callable[[Sequence[torch.Tensor], tuple[int, ...]], torch.Tensor | None]
    ) -> Any:
        whole = []
        for leaves in zip(*(each for each, _ in outputs), strict=True):
            dimensions = self.signature.returned.get(keystr(leaves[0][0]))
            values = [value for _, value in leaves]
            tensor = isinstance(values[0], torch.Tensor)
            whole.append(join(values, dimensions) if dimensions else None if tensor else values[0])
        return tree_unflatten(whole, outputs[0][1])


def _path_of_argument(forward: Callable[..., Any], path: tuple[Any, ...]) -> str:
    """Return the path of a tensor in arguments by the name of the argument, however it is passed."""
    by_name, first, *inner = path
    if by_name.idx == 1:
        return f"{first.key}{keystr(tuple(inner))}"
    names = [*signature(forward).parameters]
    return f"{names[first.idx] if first.idx < len(names) else first.idx}{keystr(tuple(inner))}"


def _has_tokens(value: torch.Tensor, dimensions: tuple[int, ...] | None, tokens: int) -> bool:
    """Return whether a tensor has tokens where it should; one that had none, or is not known, may have none."""
    if not dimensions:
        return tokens not in value.shape
    return all(each < value.ndim and value.shape[each] == tokens for each in dimensions)


def _cut(start: int, length: int, value: torch.Tensor, dimensions: tuple[int, ...]) -> torch.Tensor:
    for dimension in dimensions:
        value = value.narrow(dimension, start, length)
    return value


def _joined(values: Sequence[torch.Tensor], dimensions: tuple[int, ...]) -> torch.Tensor | None:
    """Return what samples have along their tokens. Of weights between tokens there are none for a whole row."""
    return torch.cat([*values], dim=dimensions[0]) if len(dimensions) == 1 else None


def _chosen(index: torch.Tensor, value: torch.Tensor, _: tuple[int, ...]) -> torch.Tensor:
    return value[0].index_select(0, index.flatten()).view(*index.shape, *value.shape[2:])


def _put_back(back: torch.Tensor, values: Sequence[torch.Tensor], _: tuple[int, ...]) -> torch.Tensor:
    return torch.cat([value.flatten(0, 1) for value in values]).index_select(0, back)[None]


Tensors = dict[str, torch.Tensor]
Calls = Mapping[str, list[tuple[Tensors, Tensors]]]
"""Arguments and outputs of all calls of each module, in one forward pass of the decoder."""


@contextmanager
def _recorded(decoder: nn.Module) -> Iterator[Calls]:
    calls: dict[str, list[tuple[Tensors, Tensors]]] = defaultdict(list)
    begun: list[Tensors] = []

    def before(module: nn.Module, positional: Any, named: Any) -> None:
        leaves, _ = tree_flatten_with_path((positional, named))
        begun.append(_copied({_path_of_argument(module.forward, path): value for path, value in leaves}))

    def after(name: str, _module: nn.Module, _given: Any, output: Any) -> None:
        calls[name].append((begun.pop(), _tensors(output)))

    hooks: list[Any] = []
    for name, module in decoder.named_modules():
        hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(module.register_forward_hook(partial(after, name)))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(values: Any) -> Tensors:
    leaves, _ = tree_flatten_with_path(values)
    return _copied({keystr(path): value for path, value in leaves})


def _copied(values: Mapping[str, Any]) -> Tensors:
    return {path: value.detach().clone() for path, value in values.items() if isinstance(value, torch.Tensor)}


class Search:
    """Finds the modules of a small copy that have to be called sample by sample."""

    def __init__(self, decoder: nn.Module, lengths: Sequence[int]) -> None:
        self.decoder, self.lengths = decoder, lengths
        self.found: dict[Kind, Signature] = {}
        self.modules: list[nn.Module] = []

    def next_round(self, alone: Callable[[int], object], row: Callable[[Sequence[int]], int]) -> bool:
        """Compare all calls, and let more modules be called sample by sample; return whether there are any.

        `alone(length)` runs the model on one sample, `row(lengths)` on several end to end, and returns its width.
        """
        self._alone: list[tuple[int, Calls]] = []
        for length in self.lengths:
            with _recorded(self.decoder) as calls:
                alone(length)
            self._alone.append((length, calls))
        self._rows: list[tuple[int, Calls]] = []
        for lengths in (self.lengths, self.lengths[:3]):
            with _recorded(self.decoder) as calls:
                width = row(lengths)
            self._rows.append((width, calls))
        chosen = {}
        modules = dict(self.decoder.named_modules())
        mixing = [name for name, module in modules.items() if self._may_be_called(name, module)]
        for name in _outermost(mixing):
            kind = kind_of(name, self.decoder.get_submodule(name))
            known = self.found.get(kind)
            chosen[kind] = replace(known, batched=False) if known else self._signature(kind)
        self.found |= {kind: each for kind, each in chosen.items() if each is not None}
        self.modules = call_by_sample(self.decoder, self.found)
        return bool(chosen)

    def named(self) -> list[str]:
        """Return the names of the modules that are called sample by sample, as a user would read them."""
        return sorted({kind[0].replace(".#", "").rpartition(".")[2] or kind[1] for kind in self.found})

    def types_of_layers(self) -> set[str]:
        """Return the types of the layers in which, or around which, a module is called sample by sample."""
        config: Any = getattr(self.decoder, "config", None)  # a head of this name has none
        types = () if config is None else getattr(config.get_text_config(), "layer_types", None) or ()
        lists = [each for each in self.decoder.modules() if isinstance(each, nn.ModuleList) and len(each) == len(types)]
        inside = {id(part) for module in self.modules for part in module.modules()}
        return {
            kind
            for layers in lists[:1]
            for layer, kind in zip(layers, types, strict=True)
            if any(id(part) in inside for part in layer.modules())
        }

    def forget_inner(self) -> None:
        """Forget what is called sample by sample with what it is in."""
        outer = [
            module
            for module in self.modules
            if not any(each is not module and module in [*each.modules()] for each in self.modules)
        ]
        kinds = {kind_of(name, module) for name, module in self.decoder.named_modules() if module in outer}
        self.found = {kind: each for kind, each in self.found.items() if kind in kinds}

    def _may_be_called(self, name: str, module: nn.Module) -> bool:
        """Return whether a module mixes samples, and can be called for each of them in a way not tried yet."""
        if any(each is not module and module in [*each.modules()] for each in self.modules):
            return False
        kind = kind_of(name, module)
        known = self.found.get(kind)
        if not self._mixes(name):
            return False
        return known.batched if known else self._signature(kind) is not None

    def _mixes(self, name: str) -> bool:
        row = self._rows[0][1][name]
        alone = [calls[name] for _, calls in self._alone]
        if not row or any(len(calls) != len(row) for calls in alone):
            return False
        return any(self._call_mixes(call, [calls[number] for calls in alone]) for number, call in enumerate(row))

    def _call_mixes(self, row: tuple[Tensors, Tensors], alone: Sequence[tuple[Tensors, Tensors]]) -> bool:
        """Return whether the first argument of a call has the tokens of each sample alone, and the output has not."""
        first = next(iter(row[0]), None)
        if first is None or any(first not in given for given, _ in alone):
            return False
        if not self._agree(row[0][first], [given[first] for given, _ in alone]):
            return False
        both = [path for path in row[1] if all(path in returned for _, returned in alone)]
        return not all(self._agree(row[1][path], [returned[path] for _, returned in alone]) for path in both)

    def _agree(self, row: torch.Tensor, alone: Sequence[torch.Tensor]) -> bool:
        """Return whether tensors agree, token by token; those without tokens, or with pairs of tokens, always do."""
        dimensions = _token_dimensions(zip(self.lengths, (each.shape for each in alone), strict=True))
        if dimensions is None or len(dimensions) != 1:
            return True
        if row.ndim != alone[0].ndim or row.shape[dimensions[0]] < sum(self.lengths):
            return False
        starts = [0, *accumulate(self.lengths)]
        return all(
            _close(_cut(start, length, row, dimensions), each)
            for start, length, each in zip(starts, self.lengths, alone, strict=False)
        )

    def _signature(self, kind: Kind) -> Signature | None:
        """Return where modules of a kind have tokens; None where they cannot be cut, or not be put together."""
        names = [name for name, module in self.decoder.named_modules() if kind_of(name, module) == kind]
        given = _dimensions((width, call[0]) for width, calls in self._rows for name in names for call in calls[name])
        outputs = [*self._alone, *self._rows]
        returned = _dimensions((width, call[1]) for width, calls in outputs for name in names for call in calls[name])
        if given is None or returned is None or not any(returned.values()):
            return None
        first = [calls[name] for _, calls in self._rows for name in names]
        parts = [self.decoder.get_submodule(name) for name in names]
        whole_layers = any(isinstance(part, nn.ModuleList) for module in parts for part in module.modules())
        batched = not (is_layer(kind) or whole_layers) and all(
            _is_plain(tensors, dimensions)
            for calls in first
            for call in calls
            for tensors, dimensions in zip(call, (given, returned), strict=True)
        )
        return Signature(given, returned, batched)


def _is_plain(tensors: Tensors, dimensions: Dimensions) -> bool:
    """Return whether all tensors with tokens are laid out as [1, tokens, ...]."""
    return all(
        not dimensions[path] or (dimensions[path] == (1,) and len(tensor) == 1) for path, tensor in tensors.items()
    )


def _outermost(names: Sequence[str]) -> list[str]:
    """Return names of modules of which none is in another; not those of layers in which there are others.

    The decoder itself, which has no name, is taken where there is nothing else.
    """
    found: list[str] = []
    for name in [name for name in names if name] or names:  # containers come before what they contain
        inside = [each.removeprefix(f"{name}.") for each in names if each.startswith(f"{name}.")]
        in_layers = any(part.isdigit() for each in [name.rpartition(".")[2], *inside] for part in each.split("."))
        if (inside and in_layers) or any(name.startswith(f"{each}.") for each in found):
            continue
        found.append(name)
    return found


def _dimensions(calls: Iterable[tuple[int, Tensors]]) -> dict[str, tuple[int, ...]] | None:
    """Return which dimensions count tokens, by the path of each tensor; None where that is unclear."""
    shapes: dict[str, list[tuple[int, torch.Size]]] = defaultdict(list)
    for tokens, tensors in calls:
        for path, tensor in tensors.items():
            shapes[path].append((tokens, tensor.shape))
    found = {path: _token_dimensions(each) for path, each in shapes.items()}
    known = {path: dimensions for path, dimensions in found.items() if dimensions is not None}
    return known if len(known) == len(found) else None


def _token_dimensions(shapes: Iterable[tuple[int, torch.Size]]) -> tuple[int, ...] | None:
    """Return which dimensions have as many entries as there are tokens, in all shapes; the others never change."""
    seen = [*shapes]
    ranks = {len(shape) for _, shape in seen}
    if len(ranks) != 1 or len({tokens for tokens, _ in seen}) < 2:
        return None
    dimensions = range(ranks.pop())
    counted = tuple(each for each in dimensions if all(shape[each] == tokens for tokens, shape in seen))
    fixed = [each for each in dimensions if each not in counted]
    return counted if all(len({shape[each] for _, shape in seen}) == 1 for each in fixed) else None


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.is_complex():
        found, expected = torch.view_as_real(found), torch.view_as_real(expected)
    found, expected = found.double(), expected.double()
    return bool(((found - expected).abs() <= 1e-4 * (1 + expected.abs())).all())
