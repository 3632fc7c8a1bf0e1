"""The order of epochs of data sets too large for a list: computed place by place, and the run's own."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from swift.data.schedules import BatchLayout, EpochSchedule, epochs
from swift.data.schedules.permutation import KeyedPermutation
from swift.errors import CheckpointError
from swift.train.scheduling import restore_schedule, schedule_state


def test_every_sample_has_one_position() -> None:
    for count in (1, 2, 3, 4, 5, 17, 64, 65, 1000, 4097):
        order = KeyedPermutation(count, seed=3, epoch=1)
        assert sorted(order[np.arange(count)].tolist()) == list(range(count))


def test_the_order_never_changes_with_versions() -> None:
    assert KeyedPermutation(10, 42, 0)[np.arange(10)].tolist() == [0, 6, 3, 5, 2, 9, 8, 1, 4, 7]
    assert KeyedPermutation(10_000_000, 42, 1)[np.array([0, 1, 9_999_999])].tolist() == [6391433, 3093694, 7195155]


def test_orders_of_seeds_and_epochs_are_independent() -> None:
    """Seeds and epochs give orders that have nothing to do with each other."""
    places = np.arange(20_000)
    orders = [KeyedPermutation(20_000, seed, epoch)[places] for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    orders.append(places)
    for index, one in enumerate(orders):
        for other in orders[:index]:
            # Of random permutations, the correlation has a spread of 1/sqrt(n), and one place in n is the same.
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(20_000)
            assert int((one == other).sum()) < 12
    neighbours = np.abs(np.diff(orders[0]))
    assert abs(neighbours.mean() / 20_000 - 1 / 3) < 0.01  # as for numbers that are drawn


def test_small_permutations_are_uniform() -> None:
    drawn = [tuple(KeyedPermutation(4, seed, 0)[np.arange(4)].tolist()) for seed in range(1200)]
    counts = [drawn.count(each) for each in set(drawn)]
    assert len(counts) == 24
    assert sum((each - 50) ** 2 / 50 for each in counts) < 60  # chi-squared of 23: p below 0.0001


def test_ten_million_samples_take_no_memory() -> None:
    plan = large(10_000_000)
    tracemalloc.start()
    rows = [plan.rows_of(step)[1] for step in (0, 1, 500_000, 1_200_000)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000
    assert len({row for each in rows for row in each}) == 4 * 16
    assert plan.steps_per_epoch == 625_000


def test_a_run_that_began_with_a_list_goes_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old = large(40)  # a list
    monkeypatch.setattr(epochs, "LISTED", 20)
    new, resumed = large(40), large(40)
    assert new.rows_of(1) != old.rows_of(1)
    restore_schedule(resumed, schedule_state(old))
    assert [resumed.rows_of(step) for step in range(6)] == [old.rows_of(step) for step in range(6)]
    assert schedule_state(resumed) == schedule_state(old) == {}  # and so does what is saved next


def test_a_run_that_began_with_a_computed_order_goes_on_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "LISTED", 20)
    begun, resumed = large(40), large(40)
    restore_schedule(resumed, schedule_state(begun))
    assert [resumed.rows_of(step) for step in range(6)] == [begun.rows_of(step) for step in range(6)]
    assert large(20).rows_of(0) != large(40).rows_of(0)
    with pytest.raises(CheckpointError, match="does not know: 'keyed-9'"):
        restore_schedule(large(40), {"batch_schedule": {"order": "keyed-9"}})


class Lengths:
    """A data set of which only the number of samples is known."""

    def __init__(self, count: int) -> None:
        self.lengths = np.broadcast_to(np.int32(5), count)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("no sample is read")

    facts = __getitem__


def large(count: int) -> EpochSchedule:
    data: Any = Lengths(count)
    objective: Any = None
    return EpochSchedule(data, objective, BatchLayout(global_rows=16, micro_rows=1, seed=5, epochs=2.0))
