"""The example of a third party's objective: built, installed, trained on each backend, exported and asked."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import import_rules
import pytest
import wheels
from commands import typed, typed_on

from swift_testing.subjects import write_jsonl, write_model

EXAMPLE = import_rules.ROOT / "examples" / "third-party-objective"
STEPS = 3


def words(count: int) -> str:
    return " ".join(random.Random(count).choices(("good", "bad", "fine", "dull"), k=count))


ROWS = [{"text": words(count), "grade": count % 6} for count in range(3, 19)]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed example, a model and rows."""
    work = tmp_path_factory.mktemp("rater")
    wheels.build(EXAMPLE, work)
    (wheel,) = work.glob("swift_rater-*.whl")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", work / "site"]
    subprocess.run([*map(str, command), str(wheel)], check=True)
    write_model(work / "model")
    write_jsonl(work / "rows.jsonl", ROWS)
    return work


@pytest.fixture(autouse=True)
def installed(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(work / "site"))


def swift(work: Path, line: str, processes: int = 1) -> str:
    variables = {"DS_ACCELERATOR": "cpu"}
    done = typed_on(processes, line.split(), work, variables) if processes > 1 else typed(line.split(), work)
    assert done.code == 0, done.output
    return done.output


def losses(work: Path, name: str, flags: str = "", processes: int = 1) -> list[float]:
    """Train, and return the losses."""
    swift(
        work,
        "train --objective rater --model model --dataset rows.jsonl --output_dir runs --train_type full --lr 1e-3 "
        f"--outlier 0.5 --max_steps {STEPS} --global_batch_size 4 --logging_steps 1 "
        f"--report_to none --run_name {name} {flags}",
        processes,
    )
    lines = map(json.loads, (work / "runs" / "model" / name / "logging.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.full
def test_third_party_objective_has_same_losses_everywhere(work: Path) -> None:
    """Two processes of each backend give the losses of one process of plain data parallel training."""
    alone = losses(work, "alone")
    assert len(alone) == STEPS
    assert alone[-1] != alone[0]
    for backend in ("torch", "fsdp", "deepspeed", "megatron"):
        assert losses(work, backend, f"--backend {backend}", 2) == pytest.approx(alone, rel=1e-4), backend


@pytest.mark.full
def test_third_party_objective_is_exported_and_asked(work: Path) -> None:
    """The export has the objective's own file, and `swift infer` returns the scores of the run."""
    losses(work, "exported")
    swift(work, "export runs/model/exported --to hf --out exported")
    assert json.loads((work / "exported" / "grades.json").read_text())["outlier"] == 0.5
    assert json.loads((work / "exported" / "verification.json").read_text())["verified"]
    write_jsonl(work / "texts.jsonl", [{"text": row["text"]} for row in ROWS[:3]])
    found = {}
    for model in ("exported", "runs/model/exported"):
        printed = swift(work, f"infer {model} --dataset texts.jsonl").splitlines()
        found[model] = [json.loads(line)["score"] for line in printed if line.startswith("{")]
        assert len(found[model]) == 3
    assert found["exported"] == pytest.approx(found["runs/model/exported"], abs=1e-5)


def test_example_of_an_objective_is_short() -> None:
    assert len((EXAMPLE / "swift_rater.py").read_text().splitlines()) <= 70
