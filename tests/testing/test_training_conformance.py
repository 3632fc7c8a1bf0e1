"""The kit of objectives, optimizers and tuners: good ones pass, and each mistake is found by the test for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swift_testing import Layout, TrainingConformance

SOURCE = """
from swift import LossSums
from swift.objectives.base import BaseObjective


CALLS = []


class Mine(BaseObjective):
    name = "mine"

    def row_weight(self, samples):
        return {weight}

    def loss(self, view, batch):
        logps = view.token_logps
        return LossSums(loss={loss})
"""
TOKENS = "sum(sample.loss_weight for sample in samples)"
GOOD = "-(logps * batch.weights).sum()"
HALVED = """
from swift_testing import TrainingConformance


class TestMine(TrainingConformance):
    settings = {}

    def _trained(self, folder, name, *changes, **more):
        return {1: (3.0, 2.0 if name == "alone" else 1.0)}


for name in set(dir(TrainingConformance)) - {"test_processes_change_nothing"}:
    if name.startswith("test_"):
        setattr(TestMine, name, None)
"""


class TestGoodObjective(TrainingConformance):
    settings = {"objective.name": "sft", "tuner.kind": "full"}  # noqa: RUF012 - as an author of a plugin writes it
    layouts = (Layout(2), Layout(2, config={"backend.name": "fsdp"}))


@pytest.mark.full
class TestOptimizer(TrainingConformance):
    settings = {"optim.name": "lion", "tuner.kind": "full", "optim.lr": 1e-4}  # noqa: RUF012 - as an author of a plugin writes it


@pytest.mark.full
class TestTuner(TrainingConformance):
    settings = {"tuner.kind": "vera", "tuner.rank": 4}  # noqa: RUF012 - as an author of a plugin writes it


def kit_of(**settings: Any) -> TrainingConformance:
    return type("Mine", (TrainingConformance,), {"settings": settings})()


@pytest.mark.full
@pytest.mark.parametrize(
    ("test", "weight", "loss", "message"),
    [
        ("test_accumulation_changes_nothing", TOKENS, f"{GOOD} / batch.weights.sum()", "with one row in each micro"),
        ("test_accumulation_changes_nothing", "1.0", "-(logps * batch.weights).mean()", "with one row in each micro"),
        ("test_processes_change_nothing", TOKENS, f"{GOOD} / batch.weights.sum().clamp(min=1)", "with 2 processes"),
        ("test_weights_are_trained", TOKENS, f"{GOOD} / 0", "^trained: Step 1 gave loss inf"),
        ("test_resumed_run_changes_nothing", TOKENS, f"{GOOD} * len(CALLS.append(0) or CALLS)", "half-way, step 4"),
        ("test_training_repeats", TOKENS, f"{GOOD} * (1 + __import__('time').time() % 1)", "with the same seed differ"),
        ("test_weights_are_trained", TOKENS, f"0 * {GOOD}", "nothing is trained"),
    ],
)
def test_broken_objective_is_caught(tmp_path: Path, test: str, weight: str, loss: str, message: str) -> None:
    """A mean, a wrong weight, a loss of the clock, one that counts calls, and one without a gradient."""
    (tmp_path / "mine.py").write_text(SOURCE.format(weight=weight, loss=loss))
    kit = kit_of(**{"objective.name": f"{tmp_path}/mine.py:Mine", "tuner.kind": "full"})
    with pytest.raises(AssertionError, match=message):
        getattr(kit, test)(tmp_path)


def test_failure_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """pytest prints what differs and the likely cause, no frame of the kit and no source."""
    file = tmp_path / "test_mine.py"
    file.write_text(HALVED)
    assert pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={tmp_path}", str(file)]) == 1
    printed = capsys.readouterr().out
    shown = printed.partition("FAILURES")[2].partition("short test summary")[0]
    sentence = (
        "step 1: gradient norm is 1, not 2: off by 5.0e-01, allowed is 1e-04. About 1/2: averaged over 2 processes"
    )
    assert sentence in shown
    assert ".py" not in shown
    assert len([line for line in shown.splitlines() if line]) <= 5
