"""What was predicted of a run beside what was measured, in its folder and in the ledger; more by `--report_to plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import typed
from tiny_runs import conversations, write_jsonl, write_model

from swift_plan import ledger, observer
from swift_plan.bars import Bars
from swift_plan.observer import verdict

ENTRY = ledger.LedgerEntry("fsdp", "H100", 0, {"dp_shard": 8}, 8_000_000_000, 50e9, 55e9, 2.0, 1.9)


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "ledger" / "plans.jsonl"
    monkeypatch.setenv(ledger.LEDGER, str(file))
    return file


@pytest.mark.full
def test_run_reports_plan_accuracy(tmp_path: Path, own_ledger: Path) -> None:
    write_model(tmp_path / "model")
    write_jsonl(tmp_path / "rows.jsonl", conversations(16))
    words = ["sft", "--model", "model", "--dataset", "rows.jsonl", "--train_type", "full", "--max_steps", "3"]
    ended = typed([*words, "--output_dir", "out", "--report_to", "plan", "--save_strategy", "no"], tmp_path)
    assert ended.code == 0, ended.output
    (file,) = (tmp_path / "out").rglob("plan.json")
    content = json.loads(file.read_text())
    predicted = content["predicted"]
    assert predicted["peak_bytes"] == pytest.approx(sum(predicted["memory_bytes"].values()), abs=9)
    # Nothing but torch's own tensors: fp32 weights, twice that of moments, and gradients as far as they are there yet.
    weights = predicted["memory_bytes"]["weights"]
    assert predicted["memory_bytes"]["gradients"] <= weights
    traced = content["traced"]
    assert traced["basis"] == "traced"
    assert traced["peak_bytes"] == pytest.approx(predicted["peak_bytes"], rel=0.05)
    assert predicted["memory_bytes"]["optimizer"] == 2 * weights
    measured = content["measured"]
    assert measured["steps"] == 3
    assert sum(measured["seconds"].values()) == pytest.approx(measured["step_seconds"])
    assert "Predicted" in ended.output
    (entry,) = ledger.entries("torch", "cpu")
    assert entry.measured_bytes == content["measured"]["peak_bytes"]
    (of_trace,) = ledger.entries("torch", "cpu", level=1)
    assert (of_trace.predicted_bytes, of_trace.measured_bytes) == (traced["peak_bytes"], entry.measured_bytes)
    assert weights == 4 * entry.parameters


def test_runs_are_compared_with_plan_silently(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    write_jsonl(tmp_path / "rows.jsonl", conversations(16))
    words = "sft --model model --dataset rows.jsonl --max_steps 1 --save_strategy no --output_dir out"
    ended = typed(words.split(), tmp_path)
    assert ended.code == 0, ended.output
    (file,) = (tmp_path / "out").rglob("plan.json")
    content = json.loads(file.read_text())
    (entry,) = ledger.entries("torch", "cpu")
    assert content["measured"]["peak_bytes"] == entry.measured_bytes
    assert content["predicted"]["peak_bytes"] == pytest.approx(entry.predicted_bytes, abs=1)
    assert "traced" not in content
    assert "Predicted" not in ended.output


def test_a_run_that_cannot_be_counted_ends_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(*_: object) -> None:
        raise KeyError("hidden_size")

    monkeypatch.setattr(observer, "_planned", planned)
    write_model(tmp_path / "model")
    write_jsonl(tmp_path / "rows.jsonl", conversations(16))
    words = "sft --model model --dataset rows.jsonl --max_steps 1 --save_strategy no --output_dir out"
    ended = typed(words.split(), tmp_path)
    assert ended.code == 0, ended.output
    assert "hidden_size" not in ended.output
    (file,) = (tmp_path / "out").rglob("plan.json")
    assert json.loads(file.read_text())["not_counted"] == "KeyError: 'hidden_size'"
    ended = typed([*words.split(), "--report_to", "console", "plan"], tmp_path)
    assert "hidden_size" in ended.output


def test_report_compares_plan_with_measurement() -> None:
    """The report compares the plan with the measurement and shows where the time went."""
    bar = Bars([0.1] * 20).around(2.0)
    assert verdict(bar, 2.1, {}) == "Predicted 2s per step (1.81s to 2.21s), measured 2.1s: inside."
    parts = {"compute": 1.8, "communication": 0.0, "data": 0.36, "optimizer": 0.84}
    said = verdict(bar, 3.0, parts)
    assert said.endswith("measured 3s: outside. Of it, 12% is waiting for data, 28% is the optimizer.")


def test_entries_come_back_and_damaged_lines_do_not(own_ledger: Path) -> None:
    ledger.add(ENTRY)
    with own_ledger.open("a") as file:
        file.write("{half a li\n[]\n{}\n" + '{"backend": 1}\n')
    ledger.add(ENTRY)
    assert list(ledger.entries("fsdp", "H100")) == [ENTRY, ENTRY]
    assert list(ledger.entries("fsdp", "A100")) == []
    assert ENTRY.residual("bytes") == pytest.approx(0.1)
    assert ENTRY.residual("seconds") == pytest.approx(-0.05)
