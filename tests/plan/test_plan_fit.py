"""Speeds from measured rows, and bars from their errors, on rows whose truth is known."""

import random
from dataclasses import replace
from math import exp

import pytest
from benchmarks.plan_times import choose, crossed

from swift_plan.bars import ASSUMED, Bars
from swift_plan.fit import MeasuredStep, fit, solved
from swift_plan.timing import Speeds

TRUE = replace(Speeds(), matmul=0.55, launch=2e-3, link=0.4)


def _row(work: float, sent: float, layers: float, noise: float = 1.0) -> MeasuredStep:
    """Return a step whose law is simple: products, messages, and layers that are handed over meanwhile."""

    def predict(speeds: Speeds) -> float:
        return max(work / speeds.matmul + sent / speeds.link, layers * speeds.launch) + speeds.step

    return MeasuredStep(predict, predict(TRUE) * noise)


def _rows(count: int, noise: float = 0.0, seed: int = 1) -> list[MeasuredStep]:
    draw = random.Random(seed)
    return [
        _row(draw.uniform(0.01, 1), draw.uniform(0.001, 0.5), draw.choice((10, 20, 400)), exp(draw.gauss(0, noise)))
        for _ in range(count)
    ]


def test_speeds_that_made_the_rows_are_found_again() -> None:
    found = fit(_rows(40))
    for name in ("matmul", "launch", "link"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.03)


def test_what_rows_do_not_tell_stays_as_it_was_assumed() -> None:
    found = fit(_rows(40))
    assert found.network == pytest.approx(Speeds().network)
    assert found.host == Speeds().host


def test_one_run_that_was_disturbed_does_not_move_the_speeds() -> None:
    rows = _rows(40)
    disturbed = [replace(rows[0], seconds=4 * rows[0].seconds), *rows[1:]]
    assert fit(disturbed).matmul == pytest.approx(TRUE.matmul, rel=0.06)


def test_no_rows_leave_everything_as_assumed() -> None:
    assert fit([]) == Speeds()


def test_fit_prefers_informative_rows() -> None:
    """Rows are chosen from which more is learned than from repeats."""
    same = [_row(0.5, 0.001, 10) for _ in range(20)]
    telling = [_row(0.02, 0.5, 10), _row(0.01, 0.001, 400)]
    assert set(choose([*same, *telling], 3)) >= {20, 21}


def test_equations_are_solved_where_a_pivot_is_nothing() -> None:
    assert solved([[0.0, 2.0], [3.0, 1.0]], [4.0, 5.0]) == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("count", [20, 60])
def test_bars_hold_as_many_as_they_promise(count: int) -> None:
    held, all_of_them = 0, 0
    for seed in range(400):
        draw = random.Random(seed)
        bar = Bars([draw.gauss(0, 0.1) * draw.choice((1, 3)) for _ in range(count)]).around(1.0)
        others = [exp(draw.gauss(0, 0.1) * draw.choice((1, 3))) for _ in range(50)]
        held += sum(bar.low <= other <= bar.high for other in others)
        all_of_them += len(others)
    assert 0.89 <= held / all_of_them <= 0.93


def test_bars_are_wide_and_say_so_where_rows_are_few() -> None:
    few, more = Bars([0.02] * 5).around(10.0), Bars([0.02] * 20).around(10.0)
    assert few.assumed
    assert few.high == pytest.approx(10 * exp(ASSUMED))
    assert not more.assumed
    assert more.high == pytest.approx(10 * exp(0.02))
    assert "5 rows" in str(few)
    assert "assumed" in str(few)


def test_errors_are_those_of_speeds_that_did_not_see_the_row() -> None:
    rows = _rows(12, noise=0.1)
    own = fit(rows)
    seen = [abs(row.error(own)) for row in rows]
    unseen = [abs(error) for error in crossed(rows, folds=4)]
    assert sum(unseen) > sum(seen)
