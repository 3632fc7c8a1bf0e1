"""Learning rates equal those of transformers' schedulers, step by step."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import get_cosine_with_min_lr_schedule_with_warmup, get_scheduler, get_wsd_schedule

from swift.config.sections import OptimSection
from swift.errors import ConfigError
from swift.optim.schedule import Schedule
from swift.parsing import config_from_mapping

STEPS = 50
LR = 3e-4


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


DECAY = {"num_decay_steps": 11}


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("cosine", {}),
        ("cosine", {"num_cycles": 1.75}),
        ("linear", {}),
        ("constant_with_warmup", {}),
        ("polynomial", {}),
        ("polynomial", {"lr_end": 2e-5, "power": 2.5}),
        ("cosine_with_restarts", {}),
        ("cosine_with_restarts", {"num_cycles": 3}),
        ("inverse_sqrt", {}),
        ("inverse_sqrt", {"timescale": 20}),
        ("cosine_with_min_lr", {"min_lr": 1e-6}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 1.5}),
        ("warmup_stable_decay", {**DECAY, "min_lr_ratio": 0.1}),
        ("warmup_stable_decay", {**DECAY, "decay_type": "linear", "warmup_type": "cosine", "min_lr_ratio": 0.1}),
        ("warmup_stable_decay", {**DECAY, "decay_type": "1-sqrt", "warmup_type": "1-sqrt"}),
        ("warmup_stable_decay", {**DECAY, "num_stable_steps": 20, "num_cycles": 1.5}),
    ],
)
def test_lr_schedules_match_transformers_at_every_step(name, kwargs, warmup: int) -> None:
    """The flags of transformers give its learning rates exactly at every step."""
    flags = {"lr_scheduler_type": name, "learning_rate": LR, "warmup_steps": warmup}
    optim = config_from_mapping({**flags, **({"lr_scheduler_kwargs": kwargs} if kwargs else {})}).config.optim
    schedule = Schedule.from_config(optim, LR, STEPS)
    total = None if "num_stable_steps" in kwargs else STEPS  # transformers takes one of the two

    def make(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
        return get_scheduler(name, optimizer, warmup, total, kwargs)

    assert [schedule(step) for step in range(STEPS)] == reference(make)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"lr_scheduler_type": "linear", "lr_scheduler_kwargs": {"power": 2}},
            "The schedule 'linear' does not take optim.schedule_options.power",
        ),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "needs a minimum learning rate"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "depend on the step only"),
        ({"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 1.5}}, "whole number"),
        ({"lr_scheduler_type": "polynomial", "learning_rate": 1e-8}, "not below the peak"),
        ({"learning_rate": 1e-4, "min_lr": 1e-3}, "not below the peak"),
        ({"min_lr": 1e-6, "min_lr_ratio": 0.1}, "Keep one"),
        ({"lr_scheduler_kwargs": {"num_waves": 2}}, "num_waves"),
        ({"lr_scheduler_kwargs": "cosine"}, "must be a JSON object"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_with_its_reason(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(settings)
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_warmup_below_one_is_ratio_and_megatron_names_work() -> None:
    """Warm-up below one step is a part of all steps and Megatron's names are known."""
    assert config_from_mapping({"warmup_steps": 0.1}).config.optim.warmup_ratio == 0.1
    assert config_from_mapping({"warmup_steps": "3"}).config.optim.warmup_steps == 3
    megatron = {"lr_decay_style": "inverse-square-root", "lr_warmup_fraction": 0.2, "min_lr": 1e-6}
    optim = config_from_mapping(megatron).config.optim
    assert (optim.schedule, optim.warmup_ratio, optim.min_lr) == ("inverse_sqrt", 0.2, 1e-6)


def test_every_decaying_schedule_ends_at_a_floor_and_stays_there() -> None:
    for shape in ("cosine", "linear", "polynomial", "cosine_with_restarts", "wsd"):
        for floor in ({"min_lr": 3e-5}, {"min_lr_ratio": 0.1}):
            schedule = Schedule.from_config(OptimSection(schedule=shape, **floor), LR, STEPS)
            assert [schedule(STEPS), schedule(STEPS + 100)] == pytest.approx([3e-5] * 2)
    slow = Schedule.from_config(OptimSection(schedule="inverse_sqrt", min_lr=2e-4), LR, STEPS)
    assert slow(5) > slow(49) == pytest.approx(2e-4)


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


def test_schedules_and_aliases_need_no_torch() -> None:
    code = "import sys, swift.optim.schedule, swift.model_names; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
