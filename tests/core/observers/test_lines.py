"""Which steps are logged, and what a line says of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from swift.contracts import ModelFacts
from swift.observers.lines import Meter, mfu_of, scalars_of


def logged_steps(meter, make_record, steps, **options):
    lines = [meter.take(make_record(step, **options)) for step in steps]
    return [line["step"] for line in lines if line is not None]


def test_the_first_every_nth_and_the_last_step_are_logged(make_record):
    assert logged_steps(Meter(5), make_record, range(1, 13)) == [1, 5, 10, 12]


def test_a_resumed_run_logs_its_own_first_step(make_record):
    assert logged_steps(Meter(5), make_record, range(8, 13)) == [8, 10, 12]


def test_an_evaluated_step_is_logged_whatever_its_number(make_record):
    meter = Meter(5)
    meter.take(make_record(1))
    line = meter.take(make_record(3, evaluation={"loss": 0.75, "eval_runtime": 2.0}))
    assert line["eval_loss"] == 0.75
    assert line["eval_runtime"] == 2.0


def test_speeds_are_averages_since_the_line_before(make_record):
    meter = Meter(5)
    meter.take(make_record(1))
    slow = make_record(2).__class__(**{**vars(make_record(2)), "seconds": 2.5, "memory_gib": 9.0, "data_seconds": 1.0})
    meter.take(slow)
    for step in (3, 4):
        meter.take(make_record(step))
    line = meter.take(make_record(5))
    assert line["train_speed(s/it)"] == pytest.approx((2.5 + 3 * 0.5) / 4)
    assert line["tokens_per_second"] == pytest.approx(400 / 4.0)
    assert line["padding_fraction"] == pytest.approx(0.2)
    assert line["data_wait_fraction"] == pytest.approx((1.0 + 3 * 0.05) / 4.0)
    assert line["memory(GiB)"] == 9.0
    assert line["loss"] == 1 / 5, "the loss is that of the line's own step"


def test_measured_step_line_shows_breakdown_per_rank(make_record, measured):
    """A measured step says where its time went and what each process measured."""
    meter = Meter(2)
    assert not {"compute_fraction", "ranks", "slowest_rank"} & meter.take(make_record(1)).keys()
    line = meter.take(measured(2))
    assert line["compute_fraction"] == pytest.approx(0.65)
    parts = [line[f"{part}_fraction"] for part in ("communication", "data", "optimizer")]
    assert parts == pytest.approx([0.2, 0.05, 0.1])
    assert line["slowest_rank"] == 1
    assert line["ranks"][1] == {
        "rank": 1,
        "host": "b",
        "seconds": 1.0,
        "data_seconds": 0.1,
        "own_seconds": 1.0,
        "communication_seconds": 0.0,
        "memory(GiB)": 2.5,
    }
    assert scalars_of(line).keys() >= {"train/communication_fraction", "train/slowest_rank"}
    assert "train/ranks" not in scalars_of(line), "trackers take numbers"


def test_remaining_time_goes_on_at_the_pace_of_this_session(make_record):
    times = iter([100.0, 102.0, 110.0])
    meter = Meter(10, clock=lambda: next(times))
    meter.take(make_record(6))
    for step in (7, 8, 9):
        meter.take(make_record(step))
    line = meter.take(make_record(10))
    assert line["elapsed_time"] == 10.0
    assert line["remaining_time"] == pytest.approx(10.0 / 5 * 2)


def test_the_rest_is_the_last_step_of_a_run_that_was_cut_short(make_record):
    meter = Meter(5)
    logged_steps(meter, make_record, range(1, 8))
    assert meter.rest()["step"] == 7
    assert meter.rest() is None


def test_what_is_not_finite_is_none_so_that_lines_stay_json(make_record):
    line = Meter(1).take(make_record(1, grad_norm=math.inf, skipped=True))
    assert line["grad_norm"] is None
    assert line["skipped"] is True


@pytest.fixture
def h200_run(make_run, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    run = make_run(tuner={"kind": "full"}, model={"dtype": "bfloat16"})
    run = replace(run, topology=replace(run.topology, device="cuda:0"))
    run.facts.model = ModelFacts("bfloat16", parameters=10**9, trainable=10**9)
    return run


def test_full_training_costs_six_flops_per_weight_and_token(h200_run):
    # 989 TFLOPS at 6 GFLOP a token is 164,833 tokens a second.
    assert mfu_of(h200_run)(164_833) == pytest.approx(1.0, rel=1e-4)


def test_frozen_weights_cost_no_weight_gradient(h200_run):
    h200_run.facts.model = replace(h200_run.facts.model, trainable=0)
    assert mfu_of(h200_run)(164_833) == pytest.approx(4 / 6, rel=1e-4)


def test_no_mfu_is_given_where_the_peak_is_not_known(make_run, h200_run):
    h200_run.facts.model = replace(h200_run.facts.model, precision="float32")
    assert mfu_of(h200_run)(1000.0) is None
    assert mfu_of(make_run())(1000.0) is None
