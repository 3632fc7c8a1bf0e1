"""An objective's own plan under FSDP2: on two processes the numbers of one, and resumed there or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import on_processes, succeeded
from rounds_plugin import rounds_installed
from tiny_runs import conversations, run_training, write_model

__all__ = ["rounds_installed"]

ROWS = conversations(26)
ROUNDS: dict[str, Any] = {
    "objective.name": "rounds",
    "train.max_steps": 6,
    "train.global_batch": 4,
    "train.micro_batch": 2,
    "checkpoint.save_steps": 3,
}


@pytest.mark.full
@pytest.mark.usefixtures("rounds_installed")
def test_rounds_on_two_processes_are_those_of_one_and_are_resumed_in_their_middle(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny")
    alone = run_training(model, tmp_path, ROWS, ROUNDS)
    whole = {**ROUNDS, "backend.name": "fsdp", "logging.run_name": "two"}
    before = tmp_path / "tiny" / "two" / "checkpoint-3"
    rest = {**whole, "logging.run_name": "rest", "checkpoint.resume": str(before)}
    answers = on_processes(
        2, lambda: run_training(model, tmp_path, ROWS, whole), lambda: run_training(model, tmp_path, ROWS, rest)
    )
    two, resumed = (succeeded(each)[0] for each in answers)
    on_one = run_training(model, tmp_path, ROWS, {**rest, "backend.name": "torch", "logging.run_name": "on one"})
    for part in (two, resumed, on_one):
        later = {step: alone.lines[step] for step in part.lines}
        assert list(part.lines)[-1] == 6
        for key in ("loss", "grad_norm", "advantage"):
            ours, expected = ([line[key] for line in lines.values()] for lines in (part.lines, later))
            assert ours == pytest.approx(expected, rel=1e-4, abs=1e-6), key
