"""Where a step's time goes: intervals of communication, the parts of a measured step, and who is slow."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import conversations, run_training
from torch.optim.optimizer import register_optimizer_step_pre_hook

from swift.contracts import RankFacts, StepTimes
from swift.observers.lines import TIME_PARTS
from swift.processes.traces import length_within, uncovered, waits_of
from swift.train import time_breakdown
from swift.train.time_breakdown import StepMeter, _SlowProcess
from swift_testing.subjects import Subject, shared_model

CPU, CUDA = torch._C._autograd.DeviceType.CPU, torch._C._autograd.DeviceType.CUDA
SLEEP = 0.2


@dataclass
class Event:
    """An event as kineto has it."""

    called: str
    begin: int
    end: int
    device: Any = CPU
    span: bool = False

    def name(self) -> str:
        return self.called

    def start_ns(self) -> int:
        return self.begin

    def end_ns(self) -> int:
        return self.end

    def device_type(self) -> Any:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.span


def test_uncovered_time_matches_brute_force() -> None:
    """What is uncovered is what counting single nanoseconds says."""
    source = random.Random(0)
    for _ in range(200):
        ours, theirs = (
            [
                (begin, begin + source.randrange(8))
                for begin in (source.randrange(40) for _ in range(source.randrange(6)))
            ]
            for _ in range(2)
        )
        expected = {at for begin, end in ours for at in range(begin, end)}
        expected -= {at for begin, end in theirs for at in range(begin, end)}
        found = uncovered(ours, theirs)
        assert {at for begin, end in found.tolist() for at in range(begin, end)} == expected
        assert length_within(found, 10, 25) == len(expected & set(range(10, 25)))


def test_cpu_collectives_exclude_concurrent_operators() -> None:
    """On the CPU collectives count less the operators meanwhile."""
    events = [
        Event("gloo:all_reduce", 0, 100, span=True),
        Event("c10d::allreduce_", 0, 5),
        Event("aten::mm", 10, 40),
        Event("aten::sum", 20, 30),
        Event("_c10d_functional::wait_tensor", 40, 100),
        Event("autograd::engine::evaluate_function: SumBackward", 0, 100),
        Event("Optimizer.step#AdamW.step", 0, 100, span=True),
        Event("ncclDevKernel_AllReduce", 200, 300, CUDA),
    ]
    assert waits_of(events, "cpu").tolist() == [[0, 10], [40, 100]]


def test_on_a_gpu_kernels_of_nccl_count_less_all_other_kernels() -> None:
    events = [
        Event("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 0, 100, CUDA),
        Event("nccl:all_gather", 0, 500, CUDA, span=True),
        Event("ampere_bf16_gemm", 30, 60, CUDA),
        Event("Memcpy DtoD (Device -> Device)", 90, 120, CUDA),
        Event("aten::mm", 0, 100),
    ]
    assert waits_of(events, "cuda").tolist() == [[0, 30], [60, 90]]


def test_a_part_that_sleeps_has_that_time_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from swift.data.schedules.epochs import EpochSchedule

    batch = EpochSchedule.batch

    def slow_batch(self: Any, step: int, *arguments: int) -> Any:
        time.sleep(SLEEP if step == 1 else 0)
        return batch(self, step, *arguments)

    steps: list[None] = []

    def slow_update(*_: Any) -> None:
        steps.append(None)
        time.sleep(SLEEP if len(steps) == 3 else 0)

    monkeypatch.setattr(EpochSchedule, "batch", slow_batch)
    hook = register_optimizer_step_pre_hook(slow_update)
    try:
        settings = {"logging.time_breakdown": 1, "train.max_steps": 3, "logging.report_to": ["jsonl", "report"]}
        lines = run_training(_model(), tmp_path, _rows(), settings).lines
    finally:
        hook.remove()
    for line in lines.values():
        assert sum(line[name] for name in TIME_PARTS) == pytest.approx(1)
        assert line["communication_fraction"] == 0.0
        assert "ranks" not in line
    assert lines[2]["data_fraction"] * lines[2]["train_speed(s/it)"] >= 0.9 * SLEEP
    assert lines[3]["optimizer_fraction"] * lines[3]["train_speed(s/it)"] >= 0.9 * SLEEP


def test_steps_between_measurements(tmp_path: Path) -> None:
    settings = {"logging.time_breakdown": 4, "train.max_steps": 8}
    lines = run_training(_model(), tmp_path, _rows(), settings).lines
    assert [step for step, line in lines.items() if "compute_fraction" in line] == [3, 7]


def test_switched_off_it_listens_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("something was measured")

    for name in ("UpdateTimes", "CollectiveTrace", "listening"):
        monkeypatch.setattr(time_breakdown, name, fail)
    monkeypatch.setattr("swift.processes.comms.Comms.gather_numbers", fail)
    lines = run_training(_model(), tmp_path, _rows(), {"logging.time_breakdown": 0, "train.max_steps": 4}).lines
    assert not any("compute_fraction" in line for line in lines.values())


def test_what_costs_too_much_is_measured_less_often() -> None:
    meter = StepMeter.__new__(StepMeter)
    meter._every = meter._interval = 50
    meter._slow = _SlowProcess()
    row = time_breakdown._Row(steps=50, seconds=50 * 0.01, samples=1, cost=0.02)
    meter._adapt([row, replace(row, cost=0.01)])
    assert meter._interval == 400, "20 ms of 4 s are half a percent"
    meter._adapt([replace(row, cost=0.0001)])
    assert meter._interval == 50


def test_suspected_slow_rank_triggers_limited_measuring() -> None:
    """Where a process seems slow the next steps are measured as far as the cost allows."""
    meter = StepMeter.__new__(StepMeter)
    meter._every = meter._interval = 50
    meter._slow = _SlowProcess()
    cheap = [time_breakdown._Row(steps=50, seconds=50 * 2.0, samples=1, cost=0.02)] * 2
    meter._slow.among(facts(0.5, 0.6), 1)
    meter._adapt(cheap)
    assert meter._interval == 2, "20 ms of 4 s are half a percent"
    meter._slow.among(facts(0.5, 0.6), 2)
    meter._adapt(cheap)
    assert meter._interval == 50, "it has been named"
    meter._slow.among(facts(0.5, 0.7), 1)
    meter._slow.among(facts(0.5, 0.5), 1)
    meter._adapt(cheap)
    assert meter._interval == 50, "it was slow once"


def facts(*own: float) -> list[RankFacts]:
    """One process per value."""
    return [RankFacts(rank, "node", 1.0, 0.0, 1.0, value, 1.0 - value) for rank, value in enumerate(own)]


def test_slow_rank_is_named_after_several_samples() -> None:
    """The slow process is named by its own time after several samples."""
    slow = _SlowProcess()
    steps = [facts(0.5, 0.5, 0.6, 0.5)] * 3
    assert [each and each.rank for each in (slow.among(step, 1) for step in steps)] == [None, None, 2]
    between = slow.among([replace(each, own_seconds=None) for each in steps[0]], 0)
    assert between is not None
    assert between.rank == 2, "a logged step without a sample changes nothing"
    assert slow.among(facts(0.5, 0.5, 0.53, 0.5), 1) is None, "6 % are not slow"
    assert slow.among(facts(0.5, 0.5, 0.5, 0.7), 2) is None
    again = slow.among(facts(0.5, 0.5, 0.5, 0.7), 1)
    assert again is not None
    assert again.rank == 3


def test_parts_are_fractions_of_the_step() -> None:
    parts = StepTimes(seconds=2.0, communication=0.5, data=0.1, optimizer=0.4)
    assert parts.fractions == pytest.approx({"compute": 0.5, "communication": 0.25, "data": 0.05, "optimizer": 0.2})


def _model() -> Path:
    return shared_model(Subject(), tied=False)


def _rows() -> Any:
    return conversations(16)
