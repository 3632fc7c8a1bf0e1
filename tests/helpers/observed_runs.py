"""Fixtures: a run without a model, of which observers receive made-up steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from screen import on_a_terminal

from swift.config.sections import Config
from swift.contracts import RankFacts, RequestedRun, Run, RunSummary, StepRecord, StepResult, StepTimes, Topology, World
from swift.optim.schedule import Schedule


class NoOptions(BaseModel):
    """A backend without options of its own."""


@pytest.fixture
def said() -> list[str]:
    """What was printed for the user."""
    return []


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`with terminal(columns=100) as screen:` this process writes to a terminal."""
    return partial(on_a_terminal, monkeypatch)


@pytest.fixture
def make_run(tmp_path: Path, said: list[str]) -> Callable[..., Run]:
    def make(steps: int = 5, total_steps: int = 12, data_size: int = 1, **sections: Any) -> Run:
        values = {"model": {"path": "Qwen/Qwen3-0.6B"}, "logging": {"steps": steps}, **sections}
        folder = tmp_path / "Qwen3-0.6B" / "v0-20260101-000000"
        folder.mkdir(parents=True, exist_ok=True)
        config = Config.model_validate(values)
        schedule = Schedule.from_config(config.optim, config.learning_rate, total_steps)
        run = RequestedRun(config, NoOptions(), folder, World(), said.append)
        return run.opened(Topology(World(), 0, data_size)).prepared(total_steps, schedule)

    return make


@pytest.fixture
def make_record() -> Callable[..., StepRecord]:
    """Step n: loss 1/n (2/n + 1 with other data), 100 tokens of 125 in half a second, a tenth of it waiting."""

    def make(
        step: int, total_steps: int = 12, *, evaluation: dict[str, float] | None = None, **result: Any
    ) -> StepRecord:
        values = {"loss": 1.0 / step, "grad_norm": 0.1 * step, "learning_rate": 1e-4 / step} | result
        values.setdefault("metrics", {"token_acc": 0.5 + 0.01 * step})
        return StepRecord(
            step=step,
            total_steps=total_steps,
            epoch=step / 4,
            result=StepResult(**values),
            tokens=100,
            padded_tokens=125,
            seconds=0.5,
            data_seconds=0.05,
            evaluation=evaluation,
            memory_gib=1.5,
        )

    return make


@pytest.fixture
def measured(make_record: Callable[..., StepRecord]) -> Callable[[int], StepRecord]:
    """Step n, measured on two processes, of which the second holds the first up."""

    def make(step: int) -> StepRecord:
        times = StepTimes(seconds=1.0, communication=0.2, data=0.05, optimizer=0.1)
        ranks = [RankFacts(0, "a", 1.0, 0.0, 1.5, 0.6, 0.4), RankFacts(1, "b", 1.0, 0.1, 2.5, 1.0, 0.0)]
        return replace(make_record(step), time_breakdown=times, ranks=ranks, slowest=ranks[1])

    return make


@pytest.fixture
def make_summary(make_run: Callable[..., Run]) -> Callable[..., RunSummary]:
    def make(
        status: str = "completed", steps: int = 12, checkpoint: Path | None = None, message: str = ""
    ) -> RunSummary:
        return RunSummary(status, steps, 6.0, 100 * steps, checkpoint, checkpoint, message)

    return make


@pytest.fixture
def drive(make_record: Callable[..., StepRecord], make_summary: Callable[..., RunSummary]) -> Callable[..., None]:
    """Tells an observer a session of steps: `drive(observer, run, range(1, 13), evaluate_at={12})`."""

    def drive_session(
        observer: Any,
        run: Run,
        steps: range,
        *,
        evaluate_at: set[int] = frozenset(),  # type: ignore[assignment]  # nothing is added to it
        save_at: set[int] = frozenset(),  # type: ignore[assignment]  # nothing is added to it
        summary: RunSummary | None = None,
        **result: Any,
    ) -> None:
        observer.swift_run_start(run)
        for step in steps:
            evaluation = {"loss": 2.0 / step, "token_acc": 0.25} if step in evaluate_at else None
            observer.swift_step_end(run, make_record(step, run.total_steps, evaluation=evaluation, **result))
            if step in save_at and hasattr(observer, "swift_checkpoint_saved"):
                observer.swift_checkpoint_saved(run, step, run.folder / f"checkpoint-{step}")
        observer.swift_run_end(run, summary or make_summary(steps=steps[-1]))

    return drive_session
