"""All processes of a run learn from the same data, or the run does not begin."""

from __future__ import annotations

import os
from pathlib import Path

from processes import on_processes
from tiny_runs import conversations, run_training

from swift.errors import DataError


def test_processes_that_read_different_data_refuse_to_train(tiny: Path, tmp_path: Path) -> None:
    def case() -> None:
        run_training(tiny, tmp_path, conversations(8, seed=int(os.environ["RANK"])), {"train.max_steps": 1})

    (answers,) = on_processes(2, case)
    for answer in answers:
        assert isinstance(answer, DataError)
        assert "training data of rank 1 is not that of rank 0" in answer.message
    assert not any(tmp_path.iterdir())
