"""How matrices are dealt out to processes, and in which turns they travel."""

from __future__ import annotations

from collections import Counter

from swift.contracts import Matrix
from swift_tuning.matrix_sharding import _Task, _turns


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
