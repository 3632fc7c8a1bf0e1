"""Steps of a run that Python iterates over."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import conversations

from swift import Swift
from swift.errors import UsageError
from swift.parsing import config_from_mapping


def test_python_api_iterates_steps_and_may_stop_early(tiny: Path, tmp_path: Path) -> None:
    """A program iterates over the steps of a run and may leave it."""
    settings = {
        "model.path": str(tiny), "logging.output": str(tmp_path), "logging.run_name": "run", "train.max_steps": 4,
        "train.global_batch": 2, "train.micro_batch": 2, "checkpoint.save_steps": 1, "backend.device": "cpu",
    }  # fmt: skip
    seen = []
    for record in Swift(config_from_mapping(settings), rows=conversations(9)).steps():
        saved = sorted(path.name for path in (tmp_path / tiny.name / "run").glob("checkpoint-*"))
        seen.append((record.step, saved[-1]))
        if record.step == 2:
            break
    assert seen == [(1, "checkpoint-1"), (2, "checkpoint-2")]
    with pytest.raises(UsageError, match="No model is given"):
        next(Swift(config_from_mapping({})).steps())
