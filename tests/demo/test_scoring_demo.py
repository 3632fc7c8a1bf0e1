"""`swift demo --task ...`: tasks that are learned soon, as a person types it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import typed


@pytest.mark.full
@pytest.mark.parametrize(
    ("task", "metric", "chance", "goal"),
    [
        pytest.param("seq_cls", "accuracy", 0.3, 0.95, marks=pytest.mark.rare),
        ("rm", "reward_accuracy", 0.7, 0.97),
    ],
)
def test_scoring_demo_evaluates_before_and_after(
    tmp_path: Path, task: str, metric: str, chance: float, goal: float
) -> None:
    ended = typed(["demo", "--task", task, "--out", "demo"], tmp_path)
    assert ended.code == 0, ended.output
    before = re.search(rf"eval_{metric} (0\.\d+)", ended.output)
    assert before is not None
    assert float(before[1]) < chance
    after = re.search(rf"^{metric} on held-out rows: (\d\.\d+)", ended.output, re.MULTILINE)
    assert after is not None
    assert float(after[1]) >= goal
