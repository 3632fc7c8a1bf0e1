"""`logging.jsonl` as scripts read it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from swift.contracts import DataFacts, RejectedSamples
from swift.errors import TrainingError
from swift.observers.jsonl import JsonlObserver, read_lines

DOCUMENTED = {
    "loss",
    "grad_norm",
    "learning_rate",
    "token_acc",
    "epoch",
    "global_step/max_steps",
    "elapsed_time",
    "remaining_time",
    "memory(GiB)",
    "train_speed(s/it)",
    "tokens_per_second",
    "padding_fraction",
    "data_wait_fraction",
}


def test_each_line_has_the_documented_keys_and_unrounded_figures(make_run, drive):
    run = make_run()
    drive(JsonlObserver(), run, range(1, 13), evaluate_at={12})
    lines = read_lines(run.folder / "logging.jsonl")
    assert [line["global_step/max_steps"] for line in lines] == ["1/12", "5/12", "10/12", "12/12"]
    assert all(line.keys() >= DOCUMENTED for line in lines)
    assert lines[-1]["loss"] == 1 / 12
    assert lines[-1]["eval_loss"] == 2 / 12
    assert "eval_loss" not in lines[0]


def test_initial_evaluation_is_logged_at_previous_step(make_run, make_record):
    """An evaluation before the first step stands at the step before."""
    run = make_run(steps=1)
    for first, loss in ((1, 9.0), (3, float("nan"))):  # a run, and the same resumed from step 2
        observer = JsonlObserver()
        observer.swift_run_start(run)
        observer.swift_step_end(run, replace(make_record(first), evaluation_before={"loss": loss, "eval_acc": 0.5}))
        observer.swift_step_end(run, make_record(first + 1))
    before, _, second, *others = read_lines(run.folder / "logging.jsonl")
    assert before == {"step": 0, "global_step/max_steps": "0/12", "eval_loss": 9.0, "eval_acc": 0.5}
    assert (second["step"], second["loss"], second["eval_loss"], second["eval_acc"]) == (2, 1 / 2, None, 0.5)
    assert [line["step"] for line in others] == [3, 4]


def test_the_last_line_sums_the_run_up(make_run, drive, make_summary):
    run = make_run()
    rejected = {"too long": RejectedSamples(3, "a.jsonl line 2"), "bad roles": RejectedSamples(1)}
    run.facts.data = DataFacts(samples=9, tokens=90, rejected=rejected)
    checkpoint = run.folder / "checkpoint-12"
    drive(JsonlObserver(), run, range(1, 13), summary=make_summary(checkpoint=checkpoint))
    last = json.loads((run.folder / "logging.jsonl").read_text().splitlines()[-1])
    assert last["status"] == "completed"
    assert last["tokens"] == 1200
    assert last["last_model_checkpoint"] == str(checkpoint)
    assert last["unusable_samples"] == {"too long": 3, "bad roles": 1}


def test_a_step_that_a_resumed_run_makes_again_is_there_once(make_run, drive):
    run = make_run(steps=1)
    drive(JsonlObserver(), run, range(1, 9))
    drive(JsonlObserver(), run, range(6, 13), loss=7.0)
    lines = read_lines(run.folder / "logging.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["loss"] == 7.0 for line in lines] == [False] * 5 + [True] * 7
    assert (run.folder / "logging.jsonl").read_text().count('"status"') == 1


def test_truncated_last_line_is_dropped_on_resume(make_run, drive):
    run = make_run(steps=1)
    drive(JsonlObserver(), run, range(1, 4))
    with (run.folder / "logging.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    drive(JsonlObserver(), run, range(4, 7))
    texts = (run.folder / "logging.jsonl").read_text().splitlines()
    assert [json.loads(text).get("step") for text in texts] == [1, 2, 3, 4, 5, 6, None]


def test_a_run_that_fails_between_two_logged_steps_logs_its_last(make_run, drive):
    run = make_run()
    drive(JsonlObserver(), run, range(1, 8))
    assert read_lines(run.folder / "logging.jsonl")[-1]["step"] == 7


def test_unwritable_log_ends_run_with_one_message(make_run, drive):
    """A log that cannot be written ends the run with one sentence."""
    run = make_run()
    (run.folder / "logging.jsonl").mkdir()
    with pytest.raises(TrainingError, match=r"Cannot write .*logging\.jsonl at step 1: Is a directory"):
        drive(JsonlObserver(), run, range(1, 3))
