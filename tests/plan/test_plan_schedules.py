"""Replayed pipelines beside the closed forms of the papers, and what failures cost beside a simulation."""

import random

import pytest
from benchmarks.schedules import Durations, orders, replay

from swift_plan.failures import Reliability

PASSES = Durations(forward=1.0, backward=2.0)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 16), (4, 3)])
def test_pipeline_bubble_matches_formula(stages: int, micro_batches: int) -> None:
    for name in ("gpipe", "1f1b"):
        seen = replay(orders(name, stages, micro_batches), PASSES)
        assert seen.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))


@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaving_divides_the_bubble_and_keeps_more(chunks: int) -> None:
    seen = replay(orders("interleaved", 4, 8, chunks), PASSES)
    assert seen.bubble == pytest.approx(3 / (chunks * 8 + 3))
    assert seen.in_flight[0] == pytest.approx(4 + 3 / chunks)


def test_one_f_one_b_keeps_at_most_depth_micro_batches() -> None:
    """A pipeline that goes forward and back in turn keeps no more than it is deep."""
    assert replay(orders("gpipe", 4, 8), PASSES).in_flight == (8, 8, 8, 8)
    assert replay(orders("1f1b", 4, 8), PASSES).in_flight == (4, 3, 2, 1)


def test_zero_bubble_matches_paper() -> None:
    # ZB-H1 (Qi et al. 2023): (stages - 1) (forward + backward of inputs - of weights), here 1 each; 1F1B's memory
    seen = replay(orders("zero-bubble", 4, 8), PASSES)
    assert seen.seconds == pytest.approx(8 * 3 + 3)
    assert max(seen.in_flight) == 4


def test_the_slowest_stage_sets_the_pace() -> None:
    even, uneven = (replay(orders("1f1b", 4, 64), PASSES, slower) for slower in ([], [1, 1, 1, 2]))
    assert uneven.seconds == pytest.approx(64 * 6 + 3 * 3)
    assert even.seconds < 0.6 * uneven.seconds


def test_slow_messages_are_waited_for() -> None:
    seen = replay(orders("gpipe", 2, 1), Durations(1.0, 2.0, message=0.5))
    assert seen.seconds == pytest.approx(2 * 3 + 2 * 0.5)


def test_indivisible_interleaving_is_refused() -> None:
    """Micro-batches that interleaving cannot deal out are refused."""
    with pytest.raises(ValueError, match="no multiple of 4"):
        orders("interleaved", 4, 6, 2)


def test_the_useful_share_is_that_of_a_job_that_fails_by_chance() -> None:
    job = Reliability(devices=4096, save=60.0, restart=600.0)
    draw = random.Random(5)

    def run(saves: int) -> float:
        """Train, save, fail: return the share of the time in which what was kept was learned."""
        clock, fails, every = 0.0, draw.expovariate(1 / job.between_failures), job.interval
        for _ in range(saves):
            while clock + every + job.save > fails:
                clock = fails  # what was learned since the last checkpoint is lost
                fails += draw.expovariate(1 / job.between_failures)
                while clock + job.restart > fails:
                    clock = fails
                    fails += draw.expovariate(1 / job.between_failures)
                clock += job.restart
            clock += every + job.save
        return saves * every / clock

    assert job.useful() == pytest.approx(run(20_000), abs=0.01)


def test_suggested_save_interval_is_optimal() -> None:
    job = Reliability(devices=16384, save=30.0, restart=600.0)
    best = max(job.useful(every) for every in range(10, 20_000, 10))
    assert job.useful() == pytest.approx(best, abs=1e-4)


def test_slow_save_does_not_divide_by_zero() -> None:
    """A save that takes longer than machines last does not divide by zero."""
    job = Reliability(devices=1 << 20, save=3600.0, restart=600.0)
    assert 0.0 <= job.useful() < 0.05
