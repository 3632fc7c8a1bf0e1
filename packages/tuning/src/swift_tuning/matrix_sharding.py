"""Updates that need whole matrices, where every process has a part: each matrix is updated by one process.

The matrices are dealt out by what they cost. In every turn the parts of some matrices of each owner travel to it, which
computes what one process alone would, and back: so the numbers are those of one process, and no process ever holds
whole matrices of more elements than the largest has.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from swift.contracts import Matrix, Placement

Compute = Callable[[Matrix, torch.Tensor], torch.Tensor]
"""Returns the update of one whole matrix. It may depend on its arguments, and on what it has kept for this matrix.

The memory of the matrix is used again for the next one: what is to be kept of it is cloned. What is returned may lie in
it."""


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
    """The rectangle of it, where the parameter is one matrix or a stack of them."""
    local_start: int = 0
    """Its first element in the memory of the process."""
    start: int = 0
    """Where there is no rectangle, a range: its first element in the matrix,"""
    length: int = 0
    """and how long it is."""

    @property
    def numel(self) -> int:
        return self.length if self.region is None else math.prod(max(0, each.stop - each.start) for each in self.region)

    def of_local(self, local: torch.Tensor) -> torch.Tensor:
        """Return it as a view of what the process holds of the parameter."""
        return local.view(-1).narrow(0, self.local_start, self.numel)

    def of_whole(self, whole: torch.Tensor) -> torch.Tensor:
        """Return it as a view of the whole matrix."""
        return whole[self.region] if self.region is not None else whole.view(-1).narrow(0, self.start, self.length)


@dataclass
class MatrixSharding:
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
            room = _room(tasks, dist.get_rank(group), tensors)
            for turn in _turns(tasks, dist.get_world_size(group)):
                _take_turn(group, turn, tensors, compute, room)


def _dealt(placements: Sequence[Placement], indices: Sequence[int], group: Any) -> list[_Task]:
    """Deal the matrices of sharded parameters out, the same on every process of the group."""
    size = dist.get_world_size(group)
    regions: list[Any] = [None] * size
    bounds = [[(each.start, each.stop) for each in placements[index].region] for index in indices]
    dist.all_gather_object(regions, bounds, group=group)
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
    stacked = len(placement.shape) - len(matrix.shape)
    if placement.shape[stacked:] == matrix.shape:
        return _stacked_part(placement.shape[:stacked], matrix, bounds)
    # Fused experts: a shard is a run of whole rows of the first dimension.
    row = math.prod(placement.shape[1:])
    first, last = bounds[0][0] * row, bounds[0][1] * row
    begin, end = max(first, matrix.start), min(last, matrix.start + math.prod(matrix.shape))
    length = max(0, end - begin)
    return _Part(None, begin - first if length else 0, begin - matrix.start if length else 0, length)


def _stacked_part(stack: Sequence[int], matrix: Matrix, bounds: Sequence[tuple[int, int]]) -> _Part:
    """Return the part of a matrix in a stack, of which the process holds some, and of each the same rectangle."""
    region = tuple(slice(first, last) for first, last in bounds[len(stack) :])
    number, before = matrix.start // math.prod(matrix.shape), 0
    index = [number // math.prod(stack[dim + 1 :]) % size for dim, size in enumerate(stack)]
    for each, (first, last) in zip(index, bounds, strict=False):
        if not first <= each < last:
            return _Part(None)
        before = before * (last - first) + each - first
    return _Part(region, before * math.prod(each.stop - each.start for each in region))


def _turns(tasks: Sequence[_Task], size: int) -> Iterator[list[_Task]]:
    """Yield the next matrices of every owner that has some left: together no more than the largest of all."""
    largest = max(math.prod(task.matrix.shape) for task in tasks)
    turns: dict[int, list[_Task]] = defaultdict(list)
    for owner in range(size):
        turn, taken = 0, 0
        for task in (each for each in tasks if each.owner == owner):
            numel = math.prod(task.matrix.shape)
            if taken + numel > largest:
                turn, taken = turn + 1, 0
            taken += numel
            turns[turn].append(task)
    for turn in range(len(turns)):
        yield turns[turn]


def _room(tasks: Sequence[_Task], rank: int, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return memory for the matrices of a turn, which all turns of this process have in common."""
    largest = max(math.prod(task.matrix.shape) for task in tasks)
    owns = any(task.owner == rank for task in tasks)
    return tensors[tasks[0].parameter].new_empty(largest if owns else 0)


def _take_turn(
    group: Any, turn: Sequence[_Task], tensors: Sequence[torch.Tensor], compute: Compute, room: torch.Tensor
) -> None:
    rank = dist.get_rank(group)
    parts_here = [task.parts[rank].of_local(tensors[task.parameter]) for task in turn]
    own = [(task, local) for task, local in zip(turn, parts_here, strict=True) if task.owner == rank]
    others = [(task.owner, local) for task, local in zip(turn, parts_here, strict=True) if task.owner != rank]
    wholes = _cut(room, [task.matrix.shape for task, _ in own])
    there, back = _Messages(group), _Messages(group)
    for owner, local in others:
        there.send(local, owner)
    for (task, local), whole in zip(own, wholes, strict=True):
        for other, part in enumerate(task.parts):
            view = part.of_whole(whole)
            if other == rank:
                view.copy_(local.view(view.shape))
            else:
                there.receive(view, other)
    there.arrive()
    for (task, local), whole in zip(own, wholes, strict=True):
        update = compute(task.matrix, whole).contiguous()
        for other, part in enumerate(task.parts):
            view = part.of_whole(update)
            if other == rank:
                local.view(view.shape).copy_(view)
            else:
                back.send(view, other)
    for owner, local in others:
        back.receive(local, owner)
    back.arrive()


def _cut(room: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """Return a tensor of each shape, one after the other in memory."""
    sizes = [math.prod(shape) for shape in shapes]
    pieces = torch.split(room[: sum(sizes)], sizes) if sizes else ()
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


class _Messages:
    """Parts that travel at the same time, from and to memory as it is wherever that is in one piece."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._operations: list[dist.P2POp] = []
        self._unpacked: list[tuple[torch.Tensor, torch.Tensor]] = []

    def send(self, part: torch.Tensor, process: int) -> None:
        """Send a part to a process of the group, which receives it."""
        self._add(dist.isend, part.contiguous(), process)

    def receive(self, part: torch.Tensor, process: int) -> None:
        """Fill a part with what a process of the group sends."""
        packed = part if part.is_contiguous() else torch.empty_like(part, memory_format=torch.contiguous_format)
        if packed is not part:
            self._unpacked.append((part, packed))
        self._add(dist.irecv, packed, process)

    def _add(self, operation: Callable[..., Any], part: torch.Tensor, process: int) -> None:
        if part.numel():
            self._operations.append(dist.P2POp(operation, part, group=self._group, group_peer=process))

    def arrive(self) -> None:
        """Wait until all of them have arrived."""
        for work in dist.batch_isend_irecv(self._operations) if self._operations else ():
            work.wait()
        for part, packed in self._unpacked:
            part.copy_(packed)
