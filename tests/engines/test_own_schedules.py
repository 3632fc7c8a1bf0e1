"""An objective's own schedule on every backend: on two processes the numbers of one, and resumed there or elsewhere."""

from __future__ import annotations

from functools import partial
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
@pytest.mark.parametrize(
    ("backend", "layout"),
    [
        ("fsdp", {"parallel.tp": 2}),
        ("megatron", {"parallel.pp": 2}),
    ],
    ids=["fsdp tp 2", "megatron pp 2"],
)
def test_rounds_on_two_ranks_match_one_and_resume(tmp_path: Path, backend: str, layout: dict[str, Any]) -> None:
    """Rounds on two processes are those of one and are resumed in their middle."""
    model = write_model(tmp_path / "tiny")
    alone = run_training(model, tmp_path, ROWS, ROUNDS)
    whole = {**ROUNDS, **layout, "backend.name": backend, "logging.run_name": "two"}
    before = tmp_path / "tiny" / "two" / "checkpoint-3"
    rest = {**whole, "logging.run_name": "rest", "checkpoint.resume": str(before)}
    runs = [partial(run_training, model, tmp_path, ROWS, each) for each in (whole, rest)]
    answers = on_processes(2, *runs, fresh=True)
    two, resumed = (succeeded(each)[0] for each in answers)
    on_torch = {**ROUNDS, "checkpoint.resume": str(before), "logging.run_name": "on one"}
    on_one = run_training(model, tmp_path, ROWS, on_torch)
    for part in (two, resumed, on_one):
        later = {step: alone.lines[step] for step in part.lines}
        assert list(part.lines)[-1] == 6
        for key in ("loss", "grad_norm", "advantage"):
            ours, expected = ([line[key] for line in lines.values()] for lines in (part.lines, later))
            assert ours == pytest.approx(expected, rel=1e-4, abs=1e-6), key
