"""Weights that files hold in another order than memory, such as one matrix for queries, keys and values.

In swift's own names and in checkpoints they are the parameters of the module. Files are read and written row by row, in
the order that transformers' own saving code puts the rows in: it is run once, on the numbers of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from swift.errors import ModelError

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Reordered:
    """Parameters and the tensors on disk that hold the same rows: all of one are in the other."""

    parameters: Shapes
    tensors: Shapes
    rows: Mapping[str, torch.Tensor]
    """The rows of each tensor on disk, counted through all parameters."""

    def read(self, name: str, stored: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """Return a parameter, put together from the tensors on disk."""
        first = sum(_count(shape) for shape in list(self.parameters.values())[: [*self.parameters].index(name)])
        shape = self.parameters[name]
        made = None
        for disk, rows in self.rows.items():
            here = (rows >= first) & (rows < first + _count(shape))
            if not here.any():
                continue
            values = stored(disk).reshape(len(rows), -1)
            if made is None:
                made = values.new_empty(_count(shape), values.shape[1])
            made[rows[here] - first] = values[here]
        assert made is not None
        return made.view(shape)

    def written(self, values: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors on disk, given all parameters."""
        together = torch.cat([values[name].reshape(_count(shape), -1) for name, shape in self.parameters.items()])
        for disk, rows in self.rows.items():
            yield disk, together[rows.to(together.device)].view(self.tensors[disk])

    def held(self, values: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the parameters, given all tensors on disk."""
        return ((name, self.read(name, values.__getitem__)) for name in self.parameters)


def find_reordered(
    kind: str,
    parameters: Shapes,
    tensors: Shapes,
    save: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]],
) -> list[Reordered]:
    """Return which rows of the parameters each of these tensors on disk holds, as the function that saves them tells.

    Raise `ModelError`, which names the class `kind`, if it does more than to change the order of rows.
    """
    numbered, first = {}, 0
    for name, shape in parameters.items():
        numbered[name] = torch.arange(first, first + _count(shape)).view(_narrow(shape))
        first += _count(shape)
    try:
        saved = save(dict(numbered))
    except Exception as error:  # whatever transformers' code does to what it cannot divide
        raise _not_rows(kind, next(iter({**tensors, **parameters}))) from error
    rows = {name: saved[name].flatten().contiguous() for name in tensors if name in saved}
    for name, shape in tensors.items():
        if name not in rows or saved[name].shape != _narrow(shape):
            raise _not_rows(kind, name)
    every = torch.cat([torch.arange(0), *rows.values()])
    if len(every) != first or not every.sort().values.equal(torch.arange(first)):
        raise _not_rows(kind, next(iter({**tensors, **parameters})))
    return [_group(parameters, tensors, rows, names) for names in _linked(parameters, rows)]


def _group(parameters: Shapes, tensors: Shapes, rows: Mapping[str, torch.Tensor], names: Sequence[str]) -> Reordered:
    """Return the group of some parameters, with rows counted through these alone."""
    inside = {name: shape for name, shape in parameters.items() if name in names}
    counts = torch.tensor([_count(shape) * (name in inside) for name, shape in parameters.items()])
    sizes = torch.tensor([_count(shape) for shape in parameters.values()])
    shift = (sizes.cumsum(0) - sizes) - (counts.cumsum(0) - counts)
    edges = sizes.cumsum(0)
    held = {}
    for disk, numbers in rows.items():
        owner = torch.searchsorted(edges, numbers, right=True)
        if [*parameters][int(owner[0])] in inside:
            held[disk] = numbers - shift[owner]
    return Reordered(inside, {disk: tensors[disk] for disk in held}, held)


def _linked(parameters: Shapes, rows: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Return the parameters in groups: those that share a tensor on disk are in one."""
    names = [*parameters]
    edges = torch.tensor([_count(shape) for shape in parameters.values()]).cumsum(0)
    groups: list[set[int]] = []
    for numbers in rows.values():
        found = set(torch.bincount(torch.searchsorted(edges, numbers, right=True)).nonzero().flatten().tolist())
        apart = [group for group in groups if not group & found]
        groups = [*apart, found.union(*(group for group in groups if group & found))]
    return [[names[index] for index in sorted(group)] for group in groups]


def as_stored(
    groups: Sequence[Reordered], weights: Iterator[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a stream of parameters as the tensors on disk; those of a group wait until all of it has come."""
    return _converted([(group.parameters, group.written) for group in groups], weights)


def as_held(
    groups: Sequence[Reordered], weights: Iterator[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a stream of tensors on disk as the parameters; those of a group wait until all of it has come."""
    return _converted([(group.tensors, group.held) for group in groups], weights)


def _converted(
    groups: Sequence[tuple[Shapes, Callable[[Mapping[str, torch.Tensor]], Iterator[tuple[str, torch.Tensor]]]]],
    weights: Iterator[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a function makes of the tensors of each group, and all others unchanged."""
    group_of = {name: group for group in groups for name in group[0]}
    waiting: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        group = group_of.get(name)
        if group is None:
            yield name, tensor
            del tensor  # before the next one is read
            continue
        waiting[name] = tensor.detach().clone()
        del tensor
        names, convert = group
        if names.keys() <= waiting.keys():
            yield from convert({each: waiting.pop(each) for each in names})


def _narrow(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the numbers of rows: a matrix has one for each of its rows, a vector for each value."""
    return (*shape[:-1], 1) if len(shape) > 1 else tuple(shape)


def _count(shape: Sequence[int]) -> int:
    return math.prod(_narrow(shape))


def _not_rows(kind: str, name: str) -> ModelError:
    return ModelError(
        f"{kind} stores {name} in another form than in memory, which is more than another order of rows.",
        hint="swift does not support this architecture yet.",
    )
