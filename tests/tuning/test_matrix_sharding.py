"""How matrices are dealt out to processes, and in which turns they travel."""

from __future__ import annotations

from collections import Counter
from itertools import product

import torch

from swift.contracts import Matrix, Placement
from swift_tuning.matrix_sharding import _part, _Task, _turns


def test_matrix_sharding_by_owner_bounds_memory() -> None:
    """Every matrix has its turn and no owner ever holds more than the largest."""
    sizes = [24, 24, 12, 12, 12, 8, 8, 4]
    tasks = [_Task(at, Matrix(str(at), 0, (4, size // 4)), at % 2, ()) for at, size in enumerate(sizes)]
    turns = list(_turns(tasks, 2))
    assert sorted(task.parameter for turn in turns for task in turn) == list(range(len(sizes)))
    for turn in turns:
        held: Counter[int] = Counter()
        for task in turn:
            held[task.owner] += task.matrix.shape[0] * task.matrix.shape[1]
        assert max(held.values()) <= 24
    # Small ones travel together.
    assert len(turns) == 3


def test_parts_of_stacked_matrices_are_rectangles() -> None:
    """Parts of a stack of matrices, cut along any dimension, make each of them up."""
    stack = torch.arange(3 * 2 * 4 * 5.0).view(3, 2, 4, 5)
    matrices = tuple(Matrix(str(at), at * 20, (4, 5)) for at in range(6))
    placement = Placement("experts", tuple(stack.shape), tuple(map(slice, stack.shape)), matrices)
    for matrix in matrices:
        whole = torch.zeros(4, 5)
        for bounds in product(*([(0, size // 2), (size // 2, size)] for size in stack.shape)):
            held = stack[tuple(slice(*each) for each in bounds)].clone()
            part = _part(placement, matrix, bounds)
            view = part.of_whole(whole)
            view += part.of_local(held).view(view.shape)
        assert torch.equal(whole, stack.view(6, 4, 5)[int(matrix.name)])
