"""What the terminal says, with and without a cursor to move."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from swift.contracts import DataFacts, Decision, ModelFacts, RejectedSamples
from swift.observers import console, facts
from swift.observers.console import ConsoleObserver
from swift.terminal import can_redraw, print_line, waiting


def test_without_a_terminal_each_logged_step_is_one_plain_line(make_run, drive, said, capsys):
    drive(ConsoleObserver(), make_run(), range(1, 13))
    steps = [text for text in said if text.startswith("step ")]
    assert [text.split()[1] for text in steps] == ["1/12", "5/12", "10/12", "12/12"]
    assert all(part in steps[1] for part in ("loss 0.2", "lr 2e-05", "grad norm 0.5", "200 tok/s", "1.5 GiB", "left"))
    assert not any("\x1b" in text or "\r" in text or "\n" in text for text in said)
    assert capsys.readouterr().out == ""


def test_on_a_terminal_a_bar_moves_below_the_same_lines(make_run, drive, said, monkeypatch):
    monkeypatch.setattr(console, "can_redraw", lambda _: True)
    drive(ConsoleObserver(), make_run(), range(1, 13), evaluate_at={6}, save_at={6})
    steps = [text.split()[1] for text in said if text.startswith("step ")]
    assert steps == ["1/12", "5/12", "6/12", "10/12", "12/12"]
    assert any("evaluation at step 6: loss 0.3333  token acc 0.25" in text for text in said)
    assert any("saved" in text and "checkpoint-6" in text for text in said)


def test_preference_lines_show_zero_accuracy_and_margin(make_run, drive, said):
    """Lines of preference runs show reward accuracy and margin even if they are zero."""
    metrics = {"rewards_chosen": 1.0, "reward_accuracy": 0.0, "reward_margin": -0.25, "logps_chosen": -7.0}
    drive(ConsoleObserver(), make_run(objective={"name": "dpo"}), range(1, 2), metrics=metrics)
    line = next(text for text in said if text.startswith("step "))
    assert "reward acc 0  margin -0.25" in line
    assert "logps" not in line


def test_a_terminal_keeps_the_lines_when_the_bar_is_gone(make_run, drive, terminal, monkeypatch):
    with terminal(columns=100) as screen:
        drive(ConsoleObserver(), replace(make_run(), say=print_line), range(1, 13), evaluate_at={6}, save_at={6})
    lines = [line for line in screen.lines if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["1/12", "5/12", "6/12", "10/12", "12/12"]
    assert all("loss" in line for line in lines)
    assert sum("saved" in line for line in screen.lines) == 1
    assert not [line for line in screen.lines if "━" in line or "waiting" in line]


def test_logged_lines_fit_80_columns(make_run, drive, terminal):
    """On a terminal of 80 columns no logged line wraps, and the loss, gradient norm and metrics of a long run stay."""
    slow = {"grad_norm": 123.456, "learning_rate": 1.23456e-5, "loss": 1.23456}
    with terminal(columns=80) as screen:
        run = replace(make_run(total_steps=20_000), say=print_line)
        drive(ConsoleObserver(), run, range(9_990, 10_001), **slow)
    lines = [line for line in screen.lines if line.startswith("step ")]
    assert lines[-1].startswith("step 10000/20000  loss 1.235  grad norm 123  acc 100  200 tok/s")
    assert max(map(len, lines)) <= 80


def test_waiting_note_replaces_figures_under_bar(make_run, terminal, make_summary):
    """What is waited for stands under the bar instead of the figures."""
    run = make_run()
    observer = ConsoleObserver()
    with terminal(columns=100) as screen:
        observer.swift_run_start(replace(run, say=print_line))
        with waiting("saving the checkpoint of step 5"):
            observer._bar._live.refresh()
            assert screen.wait_for("saving the checkpoint of step 5 ..."), screen.raw
        observer.swift_run_end(run, make_summary())
    assert not [line for line in screen.lines if "saving" in line]


def test_ci_gets_plain_lines_even_with_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    assert can_redraw(sys.stdout)
    monkeypatch.setenv("CI", "true")
    assert not can_redraw(sys.stdout)


def test_header_shows_model_backend_and_facts(make_run, drive, said):
    run = make_run()
    run.facts.attention = Decision("sdpa", "flash-attn is not installed")
    run.facts.data = DataFacts(samples=1200, tokens=90_000)
    run.facts["kernels"] = "made by hand"  # a fact of the backend's own
    run.facts.model = ModelFacts("float32", parameters=5_000_000, trainable=1_000_000)
    drive(ConsoleObserver(), run, range(1, 2))
    header = "\n".join(text for text in said if text.startswith("  "))
    assert "Qwen/Qwen3-0.6B" in header
    assert "torch, 1 process" in header
    assert "sdpa (flash-attn is not installed)" in header
    assert "1,200 samples, 90,000 tokens" in header
    assert "made by hand" in header
    assert "1.0 M of 5.0 M weights (20 %)" in header
    assert "Parameters" not in header


def test_header_shows_training_duration_and_batches(make_run, drive, said):
    """The header says what is trained how long and in which batches."""
    run = make_run(
        train={"micro_batch": 2, "accumulation": 4, "global_batch": 16, "epochs": 3},
        tuner={"kind": "lora", "rank": 16, "targets": ["q_proj", "v_proj"]},
        optim={"lr": 2e-5, "schedule": "linear", "warmup_steps": 5},
        objective={"name": "dpo"},
        data_size=2,
    )
    run.facts.data = DataFacts(samples=26, tokens=1300, held_out=5)
    drive(ConsoleObserver(), run, range(1, 2))
    header = dict(text.strip().split("  ", 1) for text in said if text.startswith("  "))
    assert {name: value.strip() for name, value in header.items()}.items() >= {
        "Objective": "dpo",
        "Tuner": "lora, rank 16, alpha 32, on q_proj v_proj",
        "Data": "26 samples, 5 held out, 1,300 tokens",
        "Batch": "16 rows per optimizer step (micro-batch 2 × accumulation 4 × 2 data-parallel)",
        "Length": "3 epochs, 12 steps",
        "Learning rate": "2e-05, linear, after 5 steps of warm-up",
    }.items()


def test_header_reports_first_step_compiles(make_run, drive, said):
    drive(ConsoleObserver(), make_run(train={"compile": True}), range(1, 2))
    first_step = next(place for place, text in enumerate(said) if text.startswith("step "))
    assert any("torch.compile" in text and "minutes" in text for text in said[:first_step])


def test_a_completed_run_ends_with_commands_that_use_it(make_run, drive, said, make_summary):
    run = make_run()
    drive(ConsoleObserver(), run, range(1, 13), summary=make_summary(checkpoint=run.folder / "checkpoint-12"))
    ending = "\n".join(said[-3:])
    assert "Completed after 12 steps and 1,200 tokens in 6.0s, 200 tokens/s." in ending
    assert f"swift chat {run.folder}/checkpoint-12" in ending
    assert f"swift export {run.folder}/checkpoint-12 --to hf" in ending


def test_paths_are_relative_to_the_working_directory(make_run, drive, said, make_summary, monkeypatch):
    run = make_run()
    monkeypatch.chdir(run.folder.parent.parent)
    drive(
        ConsoleObserver(),
        run,
        range(1, 13),
        save_at={12},
        summary=make_summary(checkpoint=run.folder / "checkpoint-12"),
    )
    assert "  saved Qwen3-0.6B/v0-20260101-000000/checkpoint-12" in said
    assert "Chat: swift chat Qwen3-0.6B/v0-20260101-000000/checkpoint-12" in said
    assert str(run.folder) not in "\n".join(said)


def test_scoring_run_ends_with_usage_command(make_run, drive, said, make_summary):
    """A run of a model that writes no text ends with a command that asks it."""
    run = make_run(model={"task": "embedding"})
    drive(ConsoleObserver(), run, range(1, 3), summary=make_summary(checkpoint=run.folder / "checkpoint-2"))
    ending = "\n".join(said[-3:])
    assert f"Predict vectors: swift infer {run.folder}/checkpoint-2 --dataset FILE" in ending
    assert "swift chat" not in ending


def test_a_stopped_run_ends_with_the_command_that_resumes_it(make_run, drive, said, make_summary):
    run = make_run()
    checkpoint = run.folder / "checkpoint 7"
    drive(ConsoleObserver(), run, range(1, 8), summary=make_summary("stopped", 7, checkpoint))
    assert f"--resume_from_checkpoint '{checkpoint}'" in said[-1]
    assert "swift chat" not in "\n".join(said)


def test_unusable_samples_stand_in_the_summary(make_run, drive, said):
    run = make_run()
    run.facts.data = DataFacts(9, 90, {"too long": RejectedSamples(1200), "bad roles": RejectedSamples(3)})
    drive(ConsoleObserver(), run, range(1, 3))
    assert "Unusable samples: 1,203 (too long 1,200, bad roles 3)." in said


def test_first_large_checkpoint_shows_the_space_of_all(make_run, said, tmp_path, monkeypatch):
    """The size of a checkpoint, and of as many as are kept, is printed once, unless it is small."""
    observer, run = ConsoleObserver(), make_run(steps=1)
    observer.swift_checkpoint_saved(run, 1, tmp_path)
    assert said == [f"  saved {tmp_path}"]
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "weights.safetensors").write_bytes(b"0" * 2_000)
    monkeypatch.setattr(facts, "_NOTABLE", 1e-6)
    observer = ConsoleObserver()
    for step in (2, 3):
        observer.swift_checkpoint_saved(run, step, tmp_path)
    sizes = [text for text in said if "takes" in text]
    assert sizes == ["  a checkpoint takes 0.0 GB; up to 4 are kept (--save_total_limit 3): 0.0 GB"]


def test_observers_load_without_torch_and_rich():
    names = ["swift.observers.console", "swift.observers.jsonl", "swift_trackers.tensorboard", "swift_trackers.report"]
    imports = "; ".join(f"import {name}" for name in names)
    heavy = "[name for name in ('torch', 'rich', 'jinja2', 'tensorboard', 'transformers') if name in sys.modules]"
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; {imports}; print({heavy})"], capture_output=True, text=True
    )
    assert found.stdout.strip() == "[]", found.stderr


def test_measured_step_shows_breakdown_and_slow_rank_once(make_run, measured, said):
    """A measured step logs its time breakdown, and the slow rank once."""
    observer, run = ConsoleObserver(), make_run(steps=1)
    observer.swift_run_start(run)
    said.clear()
    observer.swift_step_end(run, measured(1))
    observer.swift_step_end(run, measured(2))
    times = "  time: computing 65%, communication 20%, waiting for data 5%, optimizer 10%"
    slow = "  process 1 on b slows down the others: its step takes 1s without communication (median: 0.6s)"
    assert [text for text in said if not text.startswith("step")] == [times, slow, times]

    said.clear()
    generated = replace(measured(3).result, metrics={"seconds_generating": 2.5})
    observer.swift_step_end(run, replace(measured(3), result=generated))
    assert times.replace("data", "completions") in said
