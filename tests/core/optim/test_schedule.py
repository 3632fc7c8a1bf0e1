"""Learning rates equal those of transformers' schedulers, step by step."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from swift.config.sections import OptimSection
from swift.optim.schedule import Schedule

STEPS = 50


def reference(make, **options) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    scheduler = make(optimizer, **options)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def ours(**options) -> list[float]:
    schedule = Schedule.from_config(OptimSection(**options), 3e-4, STEPS)
    return [schedule(step) for step in range(STEPS)]


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize(
    ("shape", "make"),
    [("cosine", get_cosine_schedule_with_warmup), ("linear", get_linear_schedule_with_warmup)],
)
def test_cosine_and_linear_equal_transformers(shape: str, make, warmup: int) -> None:
    expected = reference(make, num_warmup_steps=warmup, num_training_steps=STEPS)
    assert ours(schedule=shape, warmup_steps=warmup) == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_constant_equals_transformers() -> None:
    expected = reference(get_constant_schedule_with_warmup, num_warmup_steps=7)
    assert ours(schedule="constant", warmup_steps=7) == pytest.approx(expected, rel=1e-12)


def test_a_floor_equals_transformers_cosine_with_a_minimum() -> None:
    expected = reference(
        get_cosine_with_min_lr_schedule_with_warmup, num_warmup_steps=5, num_training_steps=STEPS, min_lr_rate=0.1
    )
    assert ours(schedule="cosine", warmup_steps=5, min_lr_ratio=0.1) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_wsd_equals_transformers_after_the_warm_up(floor: float) -> None:
    expected = reference(
        get_wsd_schedule, num_warmup_steps=5, num_decay_steps=10, num_training_steps=STEPS, min_lr_ratio=floor
    )
    # Transformers starts this warm-up at the floor, and only this one; ours starts at zero for every shape.
    rates = ours(schedule="wsd", warmup_steps=5, decay_ratio=0.2, min_lr_ratio=floor)
    assert rates[5:] == pytest.approx(expected[5:], rel=1e-12)


def test_warm_up_steps_outrank_the_ratio_which_is_rounded_up() -> None:
    assert Schedule.from_config(OptimSection(warmup_ratio=0.05), 1.0, 30).warmup_steps == 2
    assert Schedule.from_config(OptimSection(warmup_ratio=0.05, warmup_steps=0), 1.0, 30).warmup_steps == 0


def test_the_schedule_ends_at_the_floor_and_stays_there() -> None:
    for shape in ("cosine", "linear", "wsd"):
        schedule = Schedule.from_config(OptimSection(schedule=shape, min_lr_ratio=0.1), 2.0, STEPS)
        assert schedule(STEPS) == pytest.approx(0.2)
        assert schedule(STEPS + 100) == pytest.approx(0.2)


def test_a_schedule_travels_between_processes_unchanged() -> None:
    schedule = Schedule.from_config(OptimSection(), 1e-4, STEPS)
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_schedules_and_aliases_need_no_torch() -> None:
    code = "import sys, swift.optim.schedule, swift.models.aliases; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
