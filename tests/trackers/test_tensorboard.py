"""Scalars as TensorBoard's own reader finds them."""

from __future__ import annotations

import pytest

from swift_trackers import tensorboard
from swift_trackers.tensorboard import TensorBoardObserver


def test_training_and_evaluation_are_scalars_of_the_logged_steps(make_run, drive):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = make_run()
    drive(TensorBoardObserver(), run, range(1, 13), evaluate_at={12})
    reader = events.EventAccumulator(str(run.folder / "runs"))
    reader.Reload()
    losses = reader.Scalars("train/loss")
    assert [event.step for event in losses] == [1, 5, 10, 12]
    assert [event.value for event in losses] == pytest.approx([1, 1 / 5, 1 / 10, 1 / 12])
    assert [event.step for event in reader.Scalars("eval/loss")] == [12]


def test_resumed_run_hides_the_steps_it_repeats(make_run, drive):
    """The first session's file is dated back: TensorBoard orders files by the second in their names."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = make_run(steps=1)
    drive(TensorBoardObserver(), run, range(1, 9))
    (first,) = (run.folder / "runs").iterdir()
    first.rename(first.with_name("events.out.tfevents.0000000001.first"))
    drive(TensorBoardObserver(), run, range(6, 13), loss=7.0)
    reader = events.EventAccumulator(str(run.folder / "runs"))
    reader.Reload()
    assert [event.step for event in reader.Scalars("train/loss")] == list(range(1, 13))


def test_missing_tensorboard_warns_where_requested(make_run, drive, said, monkeypatch):
    """Without TensorBoard the run goes on; a run that names it says how to get it, one by default says nothing."""
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    drive(TensorBoardObserver(), make_run(), range(1, 3))
    assert not said
    run = make_run(logging={"report_to": ["tensorboard"]})
    drive(TensorBoardObserver(), run, range(1, 13))
    assert len([text for text in said if 'core[tensorboard]"' in text]) == 1
    assert not (run.folder / "runs").exists()
