"""Updates that need whole matrices, where every process has a part: each matrix is updated by one process.

The matrices are dealt out by size. For one matrix of every owner at a time, the parts travel to the owner, which
computes what one process alone would, and back: so the numbers are those of one process, and no process ever holds
more than one whole matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from swift.contracts import Matrix, Placement

Compute = Callable[[Matrix, torch.Tensor], torch.Tensor]
"""Returns the update of one whole matrix. It may depend on its arguments, and on what it has kept for this matrix."""


@dataclass(frozen=True)
class _Task:
    """One matrix: which parameter it lies in, who computes it, and the part of every process."""

    parameter: int
    matrix: Matrix
    owner: int
    parts: tuple[_Part, ...]


@dataclass(frozen=True)
class _Part:
    """The part of one matrix that a process holds."""

    region: tuple[slice, ...] | None
    """The rectangle of it, where the parameter is one matrix."""
    start: int = 0
    """Else a range: its first element in the matrix,"""
    local_start: int = 0
    """in the memory of the process,"""
    length: int = 0
    """and how long it is."""

    @property
    def numel(self) -> int:
        return self.length if self.region is None else _numel(self.region)

    def of_local(self, local: torch.Tensor) -> torch.Tensor:
        """Return it as a view of what the process holds of the parameter."""
        return local.view(-1) if self.region is not None else local.view(-1).narrow(0, self.local_start, self.length)

    def of_whole(self, whole: torch.Tensor) -> torch.Tensor:
        """Return it as a view of the whole matrix."""
        return whole[self.region] if self.region is not None else whole.view(-1).narrow(0, self.start, self.length)


@dataclass
class MatrixOwners:
    """Who updates which matrix. Made once, on every process that has parts of these parameters."""

    placements: Sequence[Placement]
    _alone: list[int] = field(init=False, default_factory=list)
    _shared: list[tuple[Any, list[_Task]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        groups: dict[int, tuple[Any, list[int]]] = {}
        for index, placement in enumerate(self.placements):
            if placement.processes is None or dist.get_world_size(placement.processes) == 1:
                self._alone.append(index)
            else:
                groups.setdefault(id(placement.processes), (placement.processes, []))[1].append(index)
        for group, indices in groups.values():
            self._shared.append((group, _dealt(self.placements, indices, group)))

    def own(self) -> list[Matrix]:
        """Return the matrices that this process updates, in every step the same."""
        alone = [matrix for index in self._alone for matrix in self.placements[index].matrices]
        shared = [task.matrix for group, tasks in self._shared for task in tasks if task.owner == dist.get_rank(group)]
        return alone + shared

    def update(self, tensors: Sequence[torch.Tensor], compute: Compute) -> None:
        """Replace what each process holds of every tensor by its part of what `compute` returns for the matrices."""
        for index in self._alone:
            for matrix in self.placements[index].matrices:
                part = tensors[index].view(-1).narrow(0, matrix.start, math.prod(matrix.shape)).view(matrix.shape)
                part.copy_(compute(matrix, part))
        for group, tasks in self._shared:
            for turn in _turns(tasks, dist.get_world_size(group)):
                _take_turn(group, turn, tensors, compute)


def _dealt(placements: Sequence[Placement], indices: Sequence[int], group: Any) -> list[_Task]:
    """Deal the matrices of sharded parameters out, the same on every process of the group."""
    size = dist.get_world_size(group)
    regions: list[Any] = [None] * size
    dist.all_gather_object(regions, [_bounds(placements[index]) for index in indices], group=group)
    found = [(index, at, matrix) for at, index in enumerate(indices) for matrix in placements[index].matrices]
    found.sort(key=lambda each: (-math.prod(each[2].shape), each[2].name))
    load, tasks = [0] * size, []
    for index, at, matrix in found:
        owner = load.index(min(load))
        load[owner] += math.prod(matrix.shape) * min(matrix.shape)
        parts = tuple(_part(placements[index], matrix, regions[rank][at]) for rank in range(size))
        tasks.append(_Task(index, matrix, owner, parts))
    return tasks


def _part(placement: Placement, matrix: Matrix, bounds: Sequence[tuple[int, int]]) -> _Part:
    if len(placement.matrices) == 1:
        return _Part(tuple(slice(first, last) for first, last in bounds))
    # Fused experts: a shard is a run of whole rows of the first dimension.
    row = math.prod(placement.shape[1:])
    first, last = bounds[0][0] * row, bounds[0][1] * row
    begin, end = max(first, matrix.start), min(last, matrix.start + math.prod(matrix.shape))
    length = max(0, end - begin)
    return _Part(None, begin - matrix.start if length else 0, begin - first if length else 0, length)


def _turns(tasks: Sequence[_Task], size: int) -> Iterator[list[_Task]]:
    """Yield one matrix of every owner that has one left."""
    queues = [[task for task in tasks if task.owner == rank] for rank in range(size)]
    for turn in range(max(map(len, queues))):
        yield [queue[turn] for queue in queues if turn < len(queue)]


def _take_turn(group: Any, turn: Sequence[_Task], tensors: Sequence[torch.Tensor], compute: Compute) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    by_owner = {task.owner: task for task in turn}
    own = by_owner.get(rank)
    to_owners = [by_owner[owner].parts[rank].numel if owner in by_owner else 0 for owner in range(size)]
    of_mine = [own.parts[other].numel if own else 0 for other in range(size)]
    like = tensors[turn[0].parameter]
    sent, received = like.new_empty(sum(to_owners)), like.new_empty(sum(of_mine))
    for chunk, task in zip(torch.split(sent, to_owners), _in_order(by_owner, size), strict=True):
        if task is not None:
            chunk.copy_(task.parts[rank].of_local(tensors[task.parameter]))
    dist.all_to_all_single(received, sent, of_mine, to_owners, group=group)
    if own is not None:
        whole = like.new_empty(own.matrix.shape)
        for chunk, part in zip(torch.split(received, of_mine), own.parts, strict=True):
            view = part.of_whole(whole)
            view.copy_(chunk.view(view.shape))
        update = compute(own.matrix, whole).contiguous()
        for chunk, part in zip(torch.split(received, of_mine), own.parts, strict=True):
            view = part.of_whole(update)
            chunk.view(view.shape).copy_(view)
    dist.all_to_all_single(sent, received, to_owners, of_mine, group=group)
    for chunk, task in zip(torch.split(sent, to_owners), _in_order(by_owner, size), strict=True):
        if task is not None:
            task.parts[rank].of_local(tensors[task.parameter]).copy_(chunk)


def _in_order(by_owner: dict[int, _Task], size: int) -> list[_Task | None]:
    return [by_owner.get(owner) for owner in range(size)]


def _bounds(placement: Placement) -> list[tuple[int, int]]:
    """Return the region as numbers, which travel."""
    return [(each.start, each.stop) for each in placement.region]


def _numel(region: Sequence[slice]) -> int:
    return math.prod(max(0, each.stop - each.start) for each in region)
