"""Batch inference that is interrupted and continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import write_jsonl

from swift.cli.main import run
from swift.contracts import Sampling
from swift_infer.questions import Question
from swift_infer.resume_file import ResumeFile
from swift_testing.subjects import write_model

ROWS = [{"id": number, "query": f"question {number}" + "?" * (number % 5), "tag": None} for number in range(12)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=1)


def infer(model: Path, data: Path, result: Path, *more: str) -> int:
    flags = ["--result_path", str(result), "--max_new_tokens", "5", "--temperature", "1.0", "--seed", "3"]
    return run(["infer", str(model), "--dataset", str(data), "--batch_size", "2", *flags, *more])


def lines(result: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers that were made in one go."""
    folder = tmp_path_factory.mktemp("whole")
    data = write_jsonl(folder / "questions.jsonl", ROWS)
    assert infer(model, data, folder / "answers.jsonl") == 0
    return folder / "answers.jsonl"


def copied(whole: Path, to: Path, keep: list[int]) -> Path:
    """What an interrupted run would have left: these lines, in this order."""
    answers = whole.read_text().splitlines(keepends=True)
    (to / "questions.jsonl").write_text((whole.parent / "questions.jsonl").read_text())
    (to / "answers.jsonl").write_text("".join(answers[number] for number in keep))
    settings = "answers.jsonl.settings.json"
    (to / settings).write_text((whole.parent / settings).read_text())
    return to / "answers.jsonl"


def test_written_and_truncated_counts_are_reported(
    model: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = copied(whole, tmp_path, keep=list(range(9)))
    assert infer(model, tmp_path / "questions.jsonl", result) == 0
    cut = sum(line.get("finish_reason") == "length" for line in lines(whole)[9:])
    assert cut
    assert f"Wrote 3 responses to {result}; {cut} cut off at --max_new_tokens 5" in capsys.readouterr().err


def test_results_are_ordered_and_keep_row_columns(whole: Path) -> None:
    assert [line["id"] for line in lines(whole)] == list(range(12))
    assert [line["messages"][0]["content"] for line in lines(whole)] == [row["query"] for row in ROWS]


def test_interrupted_infer_resumes_to_same_results(
    whole: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = copied(whole, tmp_path, [7, 2, 4])
    with result.open("a") as file:
        file.write('{"messages": [{"role": "us')  # the machine went down here
    assert infer(model, tmp_path / "questions.jsonl", result) == 0
    assert "has 3 of 12 responses" in capsys.readouterr().err
    assert result.read_text() == whole.read_text()


def test_finished_rows_are_not_generated_again(
    whole: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    from swift_infer.local import LocalEngine

    real = LocalEngine.generate

    def noted(self: Any, prompts: Any, sampling: Sampling) -> Any:
        asked.extend(sampling.numbers or ())
        return real(self, prompts, sampling)

    monkeypatch.setattr(LocalEngine, "generate", noted)
    result = copied(whole, tmp_path, [0, 1, 2, 3, 4, 5, 6, 8, 9, 11])
    assert infer(model, tmp_path / "questions.jsonl", result) == 0
    assert asked == [7, 10]
    monkeypatch.setattr(LocalEngine, "__init__", None)  # nothing is left: no model is loaded
    assert infer(model, tmp_path / "questions.jsonl", result) == 0
    assert result.read_text() == whole.read_text()


def test_ctrl_c_leaves_whole_lines_that_the_next_run_keeps(whole: Path, model: Path, tmp_path: Path) -> None:
    """The signal comes when the third answer is written."""
    script = f"""
import os, signal, sys
from swift.cli.main import run
from swift_infer.resume_file import ResumeFile
written = ResumeFile.write
def write(journal, row, line):
    written(journal, row, line)
    if len(journal.left()) == 9:
        os.kill(os.getpid(), signal.SIGINT)
ResumeFile.write = write
flags = "--batch_size 2 --result_path answers.jsonl --max_new_tokens 5 --temperature 1.0 --seed 3"
sys.exit(run(["infer", {str(model)!r}, "--dataset", "questions.jsonl", *flags.split()]))
"""
    (tmp_path / "questions.jsonl").write_text((whole.parent / "questions.jsonl").read_text())
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 130, done.stderr
    assert "has 3 of 12 responses" in done.stderr
    assert "Traceback" not in done.stderr
    result = tmp_path / "answers.jsonl"
    assert len(lines(result)) == 3
    assert infer(model, tmp_path / "questions.jsonl", result) == 0
    assert result.read_text() == whole.read_text()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_evaluation_goes_on_to_the_same_score(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift_infer.local import LocalEngine

    rows = [{**row, "response": "no such answer"} for row in ROWS]
    data, result = write_jsonl(tmp_path / "questions.jsonl", rows), tmp_path / "answers.jsonl"
    flags = ["--dataset", str(data), "--result_path", str(result), "--max_new_tokens", "5", "--batch_size", "2"]

    def evaluate(*more: str) -> Any:
        assert run(["eval", str(model), *flags, *more]) == 0
        return json.loads(capsys.readouterr().out)

    assert evaluate() == {"accuracy": 0.0, "right": 0, "questions": 12}
    whole = result.read_text()
    said = json.loads(whole.splitlines()[4])["response"]
    rows[4]["response"] = f" {said}\n"
    write_jsonl(data, rows)
    assert evaluate("--overwrite") == {"accuracy": 1 / 12, "right": 1, "questions": 12}
    whole = result.read_text()
    result.write_text("".join(whole.splitlines(keepends=True)[3:9]))
    assert evaluate() == {"accuracy": 1 / 12, "right": 1, "questions": 12}
    assert result.read_text() == whole
    monkeypatch.setattr(LocalEngine, "__init__", None)  # nothing is left: no model is loaded
    assert evaluate()["right"] == 1

    assert run(["infer", str(model), *flags]) == 2  # another kind of file
    assert "made with metric accuracy; now it is not set" in capsys.readouterr().err
    assert run(["eval", str(model), *flags, "--metric", "loss"]) == 2
    assert "generates no text" in capsys.readouterr().err


def changed_row(folder: Path) -> None:
    rows = [{**row, "query": "another question"} if row["id"] == 4 else row for row in ROWS]
    write_jsonl(folder / "questions.jsonl", rows)


def fewer_rows(folder: Path) -> None:
    write_jsonl(folder / "questions.jsonl", ROWS[:5])


def not_ours(folder: Path) -> None:
    (folder / "answers.jsonl").write_text('{"messages": []}\n')


def nothing_beside(folder: Path) -> None:
    (folder / "answers.jsonl.settings.json").unlink()


@pytest.mark.parametrize(
    ("harm", "flags", "sentence"),
    [
        (changed_row, [], "another version of row 5"),
        (fewer_rows, [], "was made from another version"),
        (not_ours, [], "was not written by swift infer"),
        (nothing_beside, [], "cannot be read"),
        (None, ["--seed", "4"], "was made with seed 3; now it is 4"),
        (None, ["--system", "Be brief."], "was made with system not set; now it is Be brief."),
        (None, ["--torch_dtype", "bfloat16"], "was made with dtype auto; now it is bfloat16"),
    ],
)
def test_results_of_other_input_are_kept(
    whole: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Any,
    flags: list[str],
    sentence: str,
) -> None:
    result = copied(whole, tmp_path, list(range(8)))
    if harm is not None:
        harm(tmp_path)
    before = result.read_text()
    assert infer(model, tmp_path / "questions.jsonl", result, *flags) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "--overwrite" in error
    assert result.read_text() == before


def test_a_model_that_was_trained_on_is_another_one(model: Path, tmp_path: Path) -> None:
    own = write_model(tmp_path / "model", num_hidden_layers=1)
    data = write_jsonl(tmp_path / "questions.jsonl", ROWS[:2])
    result = tmp_path / "answers.jsonl"
    assert infer(own, data, result) == 0
    write_model(own, num_hidden_layers=1, seed=1)
    assert infer(own, data, result) == 2
    assert infer(own, data, result, "--overwrite") == 0
    assert len(lines(result)) == 2


def test_more_rows_are_answered_in_addition(whole: Path, model: Path, tmp_path: Path) -> None:
    result = copied(whole, tmp_path, list(range(12)))
    write_jsonl(tmp_path / "questions.jsonl", [*ROWS, {"id": 12, "query": "one more"}])
    assert infer(model, tmp_path / "questions.jsonl", result) == 0
    assert lines(result)[:12] == lines(whole)
    assert lines(result)[12]["id"] == 12


def test_lines_are_written_at_once(tmp_path: Path) -> None:
    """Whatever happens after `write` has returned, the line is in the file."""
    questions = [Question([{"role": "user", "content": str(number)}]) for number in range(3)]
    with ResumeFile(tmp_path / "answers.jsonl", questions, {"seed": 0}) as journal:
        for row in (2, 0):
            journal.write(row, {"messages": [], "letters": "žluťoučký 🦦"})
            assert lines(tmp_path / "answers.jsonl")[-1]["source_row"]["row"] == row
        assert journal.left() == [1]
    assert [line["source_row"]["row"] for line in lines(tmp_path / "answers.jsonl")] == [2, 0]
